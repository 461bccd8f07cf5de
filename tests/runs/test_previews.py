"""Previews are listed by step, whatever else lies in the folder."""

from atoll.runs import previews


def test_they_are_listed_in_order(tmp_path):
    assert previews.listed(tmp_path) == []
    for step in (2000, 1000, 123_456_789):
        path = previews.path_of(tmp_path, step)
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"")
    for other in ("step-00001000.png.partial", ".step-00003000.png.1-a.partial", "notes.txt", "step-1.png"):
        (tmp_path / previews.FOLDER / other).write_bytes(b"")
    assert [step for step, _ in previews.listed(tmp_path)] == [1000, 2000, 123_456_789]
    assert previews.listed(tmp_path)[0][1] == tmp_path / "previews" / "step-00001000.png"
