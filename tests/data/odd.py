"""Pictures as people have them: fifty kinds that a folder may hold, and what becomes of each."""

import os
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from atoll.config import DataConfig
from atoll.data.samples import Sample, Skipped
from atoll.data.sources import open_source
from tests.data.conftest import encoded
from tests.data.test_deep import png16

SIZE = 12
CHANCE = np.random.default_rng(0)
COLOUR = Image.fromarray(CHANCE.integers(0, 256, (SIZE, SIZE, 3), dtype=np.uint8))
GREY = COLOUR.convert("L")
DEEP = CHANCE.integers(0, 65536, (SIZE, SIZE, 3), dtype=np.uint16)


def turned() -> Image.Exif:
    exif = Image.Exif()
    exif[0x0112] = 6
    return exif


def several(form: str, **options: Any) -> bytes:
    return encoded(
        COLOUR, form, save_all=True, append_images=[COLOUR.rotate(90), GREY.convert("RGB")], **options
    )


def bomb(side: int = 100_000) -> bytes:
    head = b"IHDR" + struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)
    chunks = (head, b"IDAT" + zlib.compress(bytes(99)), b"IEND")
    parts = [struct.pack(">I", len(c) - 4) + c + struct.pack(">I", zlib.crc32(c)) for c in chunks]
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)


def wrong_checksum() -> bytes:
    raw = bytearray(encoded(COLOUR))
    raw[raw.index(b"IDAT") + 20] ^= 1
    return bytes(raw)


def transparent(form: str, **options: Any) -> bytes:
    layer = COLOUR.convert("RGBA")
    layer.putalpha(100)
    return encoded(layer, form, **options)


def palette(transparency: int | None = None) -> bytes:
    options = {} if transparency is None else {"transparency": transparency}
    return encoded(COLOUR.quantize(16), "PNG", **options)


def kinds() -> dict[str, bytes]:
    """Files by name; the first decides on channels and depth."""
    half = len(encoded(COLOUR, "JPEG", quality=95)) // 2
    floats = Image.fromarray(CHANCE.random((SIZE, SIZE), np.float32))
    return {
        "00 rgb.png": encoded(COLOUR),
        "01 grey.png": encoded(GREY),
        "02 transparent.png": transparent("PNG"),
        "03 grey and alpha.png": encoded(GREY.convert("LA")),
        "04 palette.png": palette(),
        "05 palette, transparent.png": palette(3),
        "06 one bit.png": encoded(COLOUR.convert("1")),
        "07 16 bits grey.png": png16(DEEP[..., :1]),
        "08 16 bits rgb.png": png16(DEEP),
        "09 16 bits rgba.png": png16(np.concatenate([DEEP, DEEP[..., :1]], axis=-1)),
        "10 animated.png": several("PNG"),
        "11 cut short.png": encoded(COLOUR)[:200],
        "12 wrong checksum.png": wrong_checksum(),
        "13 bytes after the end.png": encoded(COLOUR) + b"more",
        "14 claims ten thousand million pixels.png": bomb(),
        "15 one pixel.png": encoded(COLOUR.resize((1, 1))),
        "16 very thin.png": encoded(COLOUR.resize((1, 500))),
        "17 turned by exif.png": encoded(COLOUR, "PNG", exif=turned()),
        "18 empty.png": b"",
        "19 text.png": b"<html>404 Not Found</html>",
        "20 a jpg by content.png": encoded(COLOUR, "JPEG"),
        "21 LARGE ENDING.PNG": encoded(COLOUR),
        "22 rgb.jpg": encoded(COLOUR, "JPEG"),
        "23 grey.jpeg": encoded(GREY, "JPEG"),
        "24 cmyk.jpg": encoded(COLOUR.convert("CMYK"), "JPEG"),
        "25 progressive.jpg": encoded(COLOUR, "JPEG", progressive=True),
        "26 turned by exif.jpg": encoded(COLOUR, "JPEG", exif=turned()),
        "27 cut short.jpg": encoded(COLOUR, "JPEG", quality=95)[:half],
        "28 lossy.webp": encoded(COLOUR, "WEBP"),
        "29 transparent.webp": transparent("WEBP", lossless=True),
        "30 animated.webp": several("WEBP"),
        "31 plain.gif": encoded(COLOUR, "GIF"),
        "32 animated.gif": several("GIF"),
        "33 transparent.gif": transparent("GIF"),
        "34 24 bits.bmp": encoded(COLOUR, "BMP"),
        "35 palette.bmp": encoded(COLOUR.quantize(16), "BMP"),
        "36 one bit.bmp": encoded(COLOUR.convert("1"), "BMP"),
        "37 rgb.tif": encoded(COLOUR, "TIFF"),
        "38 lzw.tiff": encoded(COLOUR, "TIFF", compression="tiff_lzw"),
        "39 16 bits grey.tif": encoded(Image.fromarray(DEEP[..., 0]), "TIFF"),
        "40 floats.tif": encoded(floats, "TIFF"),
        "41 cmyk.tif": encoded(COLOUR.convert("CMYK"), "TIFF"),
        "42 three pages.tif": several("TIFF"),
        "43 32 bits.tif": encoded(Image.fromarray(np.full((SIZE, SIZE), 10**6, np.int32)), "TIFF"),
        "44 lab.tif": encoded(Image.new("LAB", (SIZE, SIZE), (120, 100, 140)), "TIFF"),
        "45 photo.avif": b"\0\0\0\x20ftypavif",
        "46 drawing.svg": b"<svg/>",
        "47 portable.ppm": encoded(COLOUR, "PPM"),
        "48 no ending": encoded(COLOUR),
        ".49 hidden.png": encoded(COLOUR),
    }


def write(folder: Path) -> None:
    """All of them, a link that leads nowhere and a folder with the name of a picture."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, raw in kinds().items():
        (folder / name).write_bytes(raw)
    os.symlink("nowhere.png", folder / "50 a link to nowhere.png")
    (folder / "51 a folder.png").mkdir()


def outcomes(folder: Path) -> dict[str, str]:
    """What becomes of every file of the folder."""
    source = open_source(DataConfig(source=str(folder), size=SIZE))
    became = dict.fromkeys(sorted(os.listdir(folder)), "left out, and counted by its ending")
    became[".49 hidden.png"] = "left out: hidden"
    became["51 a folder.png"] = "a folder: looked into"
    for item in (item for piece in range(source.pieces) for item in source.read(piece)):
        if isinstance(item, Skipped):
            became[item.name] = f"skipped: {item.reason}"
        elif isinstance(item, Sample):
            became[item.name] = "; ".join(("read", *item.remarks))
    return became


def table(folder: Path) -> str:
    """The outcomes as Markdown."""
    lines = [f"| {name} | {became} |" for name, became in sorted(outcomes(folder).items())]
    return "\n".join(["| file | what becomes of it |", "|---|---|", *lines])
