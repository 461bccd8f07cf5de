"""Pictures inside of a page, so that it needs no file beside it."""

import base64
from pathlib import Path


def embedded(path: Path) -> str | None:
    """A picture as a data address; None where there is none, as for samples that are not pictures."""
    if not path.is_file():
        return None
    return address(path.read_bytes())


def address(png: bytes) -> str:
    """The bytes of a picture as a data address."""
    return "data:image/png;base64," + base64.b64encode(png).decode()
