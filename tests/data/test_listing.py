"""A folder of files is listed in the order of names, whole, and in memory that does not grow with it."""

import os
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atoll.data import identity, listing
from atoll.data.listing import Listing, endings
from atoll.errors import DataError
from atoll.runs import digest, file_digest

NAMES = st.text("ab .-é_Z", min_size=1, max_size=4).filter(
    lambda name: name.strip(" .") == name and not name.startswith(".")
)
PATHS = st.lists(st.tuples(NAMES, NAMES, st.sampled_from([".png", ".JPG", ".txt", ".csv", ""])), max_size=12)


def write(root: Path, names: list[str]) -> None:
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(name)


@settings(max_examples=40, deadline=None)
@given(PATHS)
def test_files_come_in_the_order_of_their_names(tmp_path_factory: Any, paths: Any) -> None:
    root = tmp_path_factory.mktemp("folder")
    write(root, [f"{folder} x/{stem}{ending}" for folder, stem, ending in paths])
    every = sorted(file.relative_to(root).as_posix() for file in root.rglob("*") if file.is_file())
    listed = Listing(root)
    assert [file.relative_to(root).as_posix() for file in listed.paths()] == every
    pictures = [name for name in every if name.lower().endswith((".png", ".jpg"))]
    assert [file.name for file in listed.some_pictures()] == pictures
    assert [file.name for file in listed.some_pictures(1, 3)] == pictures[1:3]
    assert [file.name for file in listed.beside()] == [name for name in every if name.endswith(".txt")]
    assert len(listed) == len(every)


def test_the_identity_is_that_of_a_list(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, ["b/1.png", "a.png", "b/1.txt", "metadata.csv", "z.doc"])
    order = ["a.png", "b/1.png", "b/1.txt", "metadata.csv"]
    by_contents = [(name, file_digest(tmp_path / name)) for name in order]
    assert identity.identity_of_pictures(Listing(tmp_path)) == digest(by_contents)
    monkeypatch.setattr(identity, "HASH_LIMIT", 1)
    states = [(name, (tmp_path / name).stat()) for name in order]
    by_state = [(name, state.st_size, state.st_mtime_ns) for name, state in states]
    assert identity.identity_of_pictures(Listing(tmp_path)) == digest(by_state)


def test_what_says_nothing_of_any_picture_is_counted(tmp_path: Path) -> None:
    write(tmp_path, ["1.png", "1.txt", "a.b.png", "a.b.txt", "a.txt", "2.txt", "x.DOC", "y.doc", "README"])
    assert Listing(tmp_path).left_out() == {".doc": 2, ".txt": 2, "README": 1}


def test_many_endings_are_few_words() -> None:
    counts = endings(f"file.{number}" for number in range(1000))
    assert len(counts) == listing.ENDINGS + 1
    assert counts["others"] == 1000 - listing.ENDINGS


def test_links_to_folders_are_followed_and_never_in_circles(tmp_path: Path) -> None:
    write(tmp_path, ["elsewhere/1.png", "root/cats/2.png"])
    (tmp_path / "root" / "dogs").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "root" / "cats" / "up").symlink_to("..")
    (tmp_path / "root" / "cats" / "here").symlink_to(".")
    (tmp_path / "elsewhere" / "back").symlink_to(tmp_path / "root")
    listed = Listing(tmp_path / "root")
    assert [file.name for file in listed.some_pictures()] == ["cats/2.png", "dogs/1.png"]


def test_a_folder_that_cannot_be_looked_into_is_no_empty_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, ["1.png", "closed/2.png"])
    scandir = os.scandir

    def refuse(path: Any) -> Any:
        if Path(path).name == "closed":
            raise PermissionError(13, "Permission denied")
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refuse)
    with pytest.raises(DataError, match=r"closed cannot be looked into \(Permission denied\)"):
        Listing(tmp_path)


def test_a_disk_that_stutters_lists_nothing_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, [f"{number}.png" for number in range(5)])
    take, failures = Listing._take, [OSError(5, "Input/output error")]

    def stutter(self: Listing, folder: str, entries: Any) -> None:
        take(self, folder, entries)
        if failures:
            raise failures.pop()

    monkeypatch.setattr(Listing, "_take", stutter)
    monkeypatch.setattr("atoll.data.reading.WAITS", (0.0,))
    assert Listing(tmp_path).pictures == 5


def test_memory_does_not_grow_with_the_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listing, "ROWS", 100)
    peaks = []
    for count in (500, 2500):
        folder = tmp_path / str(count)
        write(folder, [f"a rather long name of a picture, {number:09d}.png" for number in range(count)])
        tracemalloc.start()
        listed = Listing(folder)
        assert identity.identity_of_pictures(listed)
        assert sum(1 for _ in listed.some_pictures()) == count
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < 1.2 * peaks[0]
