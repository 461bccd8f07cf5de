import numpy as np
from PIL import Image

from atoll import gallery


def test_the_grid_shows_every_picture_and_its_maker():
    pixels = np.zeros((3, 56, 56, 1), np.uint8)
    pixels[1] = 200
    sheet = gallery.grid(pixels, experts=[0, 1, 0], columns=2)
    first, second = sheet.getpixel((4 + 28, 4 + 28)), sheet.getpixel((4 + 60 + 28, 4 + 28))
    assert first == (0, 0, 0)
    assert second == (200, 200, 200)
    marks = [sheet.getpixel((4 + 28, 4 + 57)), sheet.getpixel((4 + 60 + 28, 4 + 57))]
    assert marks == [Image.new("RGB", (1, 1), gallery.PALETTE[k]).getpixel((0, 0)) for k in (0, 1)]
