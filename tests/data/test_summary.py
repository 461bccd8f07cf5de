"""`prepare` says what it understood, and so do its record and the preview."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from atoll.cli.options import app
from atoll.data import summary
from atoll.data.encode import prepare
from atoll.runs import Run
from atoll.runs.records import DataContents, Remark, Understood
from tests.data.conftest import MakeRun, encoded, picture, pixels


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Pictures of two classes, of which some are odd."""
    root = tmp_path / "in"
    for index in range(20):
        place = root / ("cat" if index < 12 else "dog")
        place.mkdir(parents=True, exist_ok=True)
        same = index == 19
        (place / f"{index:02d}.png").write_bytes(encoded(picture(18 if same else index, mode="L")))
    (root / "cat" / "03.txt").write_text("a grey square")
    (root / "cat" / "broken.png").write_bytes(b"no")
    moving = encoded(picture(30, mode="L"), "GIF", save_all=True, append_images=[picture(40, mode="L")])
    (root / "dog" / "moving.gif").write_bytes(moving)
    (root / "dog" / "colour.bmp").write_bytes(encoded(Image.new("RGB", (8, 8), (9, 50, 90)), "BMP"))
    (root / "dog" / "some.avif").write_bytes(b"?")
    (root / "notes.txt").write_text("not of a picture")
    return root


EXPECTED = [
    "22 pictures of 1 x 8 x 8, uint8",
    "  grey: the first picture is (data.channels overrules it)",
    "classes: 2: cat (12), dog (10)",
    "captions: 1",
    "duplicates: 1 (data.duplicates says whether they stay)",
    "skipped: 1",
    "  1: not a readable picture (UnidentifiedImageError), first cat/broken.png",
    "colour made grey: 1, first dog/colour.bmp",
    "animated or of several pages, the first is taken: 1, first dog/moving.gif",
    "files left out: 1 .avif, 1 .txt",
]


def test_prepare_says_what_it_understood(folder: Path, make_run: MakeRun) -> None:
    run = make_run(folder, data={"max_skipped": 0.1, "part": 5})
    contents = prepare(run).contents
    assert sorted(summary.sentences(contents)) == sorted(EXPECTED)
    again = Run(run.path, run.config).data.contents
    assert summary.sentences(again) == summary.sentences(contents)


def test_of_other_kinds_the_reasons_are_said(tmp_path: Path, make_run: MakeRun) -> None:
    np.savez(tmp_path / "a.npz", images=pixels(30).astype(np.float32) / 255)
    lines = summary.sentences(prepare(make_run(tmp_path / "a.npz")).contents)
    assert lines[:3] == [
        "30 pictures of 3 x 8 x 8, float32",
        "  pictures: the field is called 'images'",
        "  black is 0 and white 1: values go from 0 to 1",
    ]


def test_many_of_anything_are_cut_short() -> None:
    reasons = tuple(Remark(what=f"reason {index}", count=9 - index, first="x") for index in range(5))
    contents = DataContents(
        kind="image",
        shape=(1, 2, 2),
        dtype="uint8",
        mean=(127.5,),
        std=(127.5,),
        group=1,
        rows=5000,
        bytes=0,
        parts=(),
        features="pixels",
        class_names=tuple(str(index) for index in range(20)),
        skipped=35,
        understood=Understood(class_counts={"0": 4990}, labelled=4990, reasons=reasons),
    )
    lines = summary.sentences(contents)
    assert lines[1].endswith("11 (0) and 8 more; 10 without")
    assert lines[-1] == "  and 2 more reasons"
    assert summary.sentences(contents.model_copy(update={"class_names": ()}))[1] == "classes: none"


def test_the_commands_say_it_off_a_terminal(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = tmp_path / "mine.toml"
    recipe.write_text(f'name = "mine"\n[data]\nsource = "{folder}"\nmax_skipped = 0.1\n')

    def said(*arguments: str) -> Any:
        app(args=[*arguments, str(recipe)], standalone_mode=False)
        return capsys.readouterr().out

    before = said("show", "--data").splitlines()
    assert before[0] == "23 pictures of 1 x 8 x 8, uint8"  # one of which cannot be read
    assert "classes: 2: cat (12), dog (10)" in before
    assert "as far as a few samples show (`atoll prepare` counts all):" in before
    assert not any("duplicates" in line for line in before)  # which a few samples cannot show
    assert before[-1] == f"Wrote {tmp_path / 'runs' / 'mine' / 'preview.png'}"
    with Image.open(tmp_path / "runs" / "mine" / "preview.png") as sheet:
        assert min(sheet.size) > 5 * 8
    assert not (tmp_path / "runs" / "mine" / "data").exists()
    lines = said("prepare").splitlines()
    assert sorted(lines[:-2]) == sorted(EXPECTED)
    assert lines[-2] == f"look at {tmp_path / 'runs' / 'mine' / 'data' / summary.SHEET}"
    assert lines[-1].startswith("Done: ")
    assert json.loads(said("prepare", "--json"))["understood"]["captions"] == 1
