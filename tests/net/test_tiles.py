"""Tiles against tlog-scales as reader and as writer, and the examples of the specification."""

from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given
from hypothesis import strategies as st
from tlog_scales import backend, reader, signing, writer
from tlog_scales import tiles as theirs

from atoll.errors import CorruptError
from atoll.net import notes, tiles, tree

KEY = Ed25519PrivateKey.from_private_bytes(bytes([7]) * 32)


def entries(size: int) -> list[bytes]:
    return [f"entry {index}".encode() * (index % 5) for index in range(size)]


@pytest.fixture(scope="module")
def log(tmp_path_factory) -> Path:
    """700 entries in three commits, written by tlog-scales."""
    folder = tmp_path_factory.mktemp("log") / "tiles"
    made = writer.TilesWriter.create(folder, "log.example")
    for index, entry in enumerate(entries(700)):
        made.add_leaf(entry)
        if index in (99, 511, 699):
            made.commit([signing.PlainEd25519Signer("log.example", KEY)])
    return folder


def fetch(folder: Path) -> tiles.Fetch:
    def get(name: str) -> bytes | None:
        path = folder / name
        return path.read_bytes() if path.is_file() else None

    return get


@pytest.mark.parametrize("index", [0, 7, 255, 999, 1000, 1234067, 10**9])
def test_names_are_those_of_a_second_implementation(index):
    assert tiles.path(3, index).split("/") == theirs.tile_path(3, index)
    assert tiles.path("entries", index, 12).split("/") == theirs.tile_path(-1, index, 12)
    assert tiles.path(0, 1234067) == "tile/0/x001/x234/067"


def test_a_tree_of_70000_has_the_tiles_that_the_specification_counts():
    listed = list(tiles.widths(70_000))
    assert sum(level == 0 and width == 256 for level, _, width in listed) == 273
    assert [one for one in listed if one[2] < 256] == [(0, 273, 112), (1, 1, 17), (2, 0, 1)]
    assert list(tiles.widths(256)) == [(0, 0, 256), (1, 0, 1)]
    assert list(tiles.widths(0)) == []


def test_what_a_second_implementation_wrote_is_read(log):
    checkpoint = notes.opened((log / "checkpoint").read_bytes(), notes.public_hex(KEY))
    read = tiles.Reader(fetch(log), checkpoint.size)
    assert list(read.all_entries()) == entries(700)
    assert read.root() == checkpoint.root == tree.root([tree.leaf_hash(entry) for entry in entries(700)])
    assert read.entry(300) == entries(700)[300]


def test_proofs_off_tiles_are_those_of_a_second_implementation(log):
    other = reader.TilesReader(backend.LocalBackend(log))
    other.get_checkpoint()
    read = tiles.Reader(fetch(log), 700)
    for index in [0, 1, 255, 256, 511, 512, 640, 699]:
        assert read.inclusion(index) == other.get_inclusion_proof(index, 700).node_hashes
    for first in [1, 2, 100, 255, 256, 257, 512, 600, 699, 700]:
        assert read.consistency(first) == other.get_consistency_proof(first, 700).node_hashes


def test_an_older_size_is_read_off_the_full_tiles_that_came_later(log):
    assert tiles.Reader(fetch(log), 100).root() == tree.root(
        [tree.leaf_hash(entry) for entry in entries(700)[:100]]
    )


@given(st.lists(st.binary(max_size=40), max_size=20))
def test_bundles_hold_what_was_put_in(items):
    assert tiles.entries_of(tiles.bundle(items)) == items


@given(st.lists(st.binary(max_size=40), min_size=1, max_size=8), st.data())
def test_a_bundle_that_is_cut_off_is_never_silently_shorter(items, data):
    whole = tiles.bundle(items)
    length = data.draw(st.integers(0, len(whole) - 1))
    read = tiles.Reader(lambda name: whole[:length], len(items))
    with pytest.raises(CorruptError):
        read.entries(0)


def test_tiles_that_are_missing_or_cut_off_are_named():
    with pytest.raises(CorruptError, match="tile/0/000.p/3 of the log is missing"):
        tiles.Reader(lambda name: None, 3).root()
    with pytest.raises(CorruptError, match="tile 0/0 of the log is cut off"):
        tiles.Reader(lambda name: bytes(95), 3).root()
