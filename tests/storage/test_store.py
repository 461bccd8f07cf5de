"""Addresses of stores, and which kind of store is behind each."""

from pathlib import Path

import pytest

from atoll.errors import ConfigError
from atoll.storage.folder import FolderStore
from atoll.storage.objects import ObjectStore
from atoll.storage.store import address_of, check_address, open_store


@pytest.mark.parametrize(
    ("address", "words"),
    [
        ("s3://key:secret@bucket/x", "must not hold a key"),
        ("s3://bucket/x?X-Amz-Signature=secret", "must not hold a key"),
        ("ftp://host/x", "is not known"),
        ("s3://", "names no bucket"),
        ("bucket/runs", "another folder on every machine"),
        ("file://bucket/runs", "another folder on every machine"),
    ],
)
def test_addresses_that_are_refused(address, words):
    with pytest.raises(ConfigError, match=words) as caught:
        open_store(address)
    assert "secret" not in str(caught.value)


def test_a_folder_or_a_bucket(tmp_path, store):
    assert isinstance(open_store(f"file://{tmp_path}/run"), FolderStore)
    assert isinstance(open_store(store.address), ObjectStore)


def test_addresses_are_written_in_one_way(tmp_path):
    assert check_address("s3://bucket/runs/") == "s3://bucket/runs"
    assert check_address(f"file://{tmp_path}/x/../y") == str(tmp_path / "y")


def test_an_address_that_was_taken_for_a_path():
    assert address_of(Path("s3://bucket/runs/fashion")) == "s3://bucket/runs/fashion"
    assert address_of("runs/fashion") is None
