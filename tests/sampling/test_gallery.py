import numpy as np
import torch
from PIL import Image

from atoll.runs.records import SampleFormat
from atoll.sampling import gallery
from atoll.sampling.provenance import PALETTE


def test_the_grid_shows_every_picture_and_its_maker():
    pixels = np.zeros((3, 56, 56, 1), np.uint8)
    pixels[1] = 200
    sheet = gallery.grid(pixels, experts=[0, 1, 0], columns=2)
    first, second = sheet.getpixel((4 + 28, 4 + 28)), sheet.getpixel((4 + 60 + 28, 4 + 28))
    assert first == (0, 0, 0)
    assert second == (200, 200, 200)
    marks = [sheet.getpixel((4 + 28, 4 + 57)), sheet.getpixel((4 + 60 + 28, 4 + 57))]
    assert marks == [Image.new("RGB", (1, 1), PALETTE[k]).getpixel((0, 0)) for k in (0, 1)]


def test_pictures_are_pixels_of_the_data():
    about = SampleFormat(kind="image", dtype="uint8", mean=(127.5,) * 3, std=(127.5,) * 3)
    pixels = gallery.to_pixels(torch.tensor([-1.0, 1.0])[:, None, None, None].expand(2, 3, 4, 4), about)
    assert pixels.shape == (2, 4, 4, 3)
    assert (pixels[0] == 0).all() and (pixels[1] == 255).all()
    assert gallery.picture(pixels[0, :, :, :1]).mode == "L"
    assert gallery.picture_name(7) == "sample-00007.png"
