"""A picture in a page is its very bytes."""

import base64

from atoll.pages.pictures import embedded


def test_a_picture_is_its_bytes(tmp_path):
    path = tmp_path / "one.png"
    assert embedded(path) is None
    path.write_bytes(b"\x89PNG")
    head, _, data = embedded(path).partition(",")
    assert head == "data:image/png;base64"
    assert base64.b64decode(data) == b"\x89PNG"
