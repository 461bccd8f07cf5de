"""Trees against RFC 6962's definition by recursion, its published vectors, and tlog-scales."""

import hashlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tlog_scales.tlog import (
    ConsistencyProof,
    ConsistencyProofInvalid,
    InclusionProof,
    InclusionProofInvalid,
)

from atoll.net import tree

ENTRIES = [bytes.fromhex(text) for text in (
    "", "00", "10", "2021", "3031", "40414243", "5051525354555657", "606162636465666768696a6b6c6d6e6f",
)]  # fmt: skip
ROOTS = [
    "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
    "6e340b9cffb37a989ca544e6bb780a2c78901d3fb33738768511a30617afa01d",
    "fac54203e7cc696cf0dfcb42c92a1d9dbaf70ad9e621f4bd8d98662f00e3c125",
    "aeb6bcfe274b70a14fb067a5e5578264db0fa9b51af5e0ba159158f329e06e77",
    "d37ee418976dd95753c1c73862b9398fa2a2cf9b4ff0fdfe8b30cd95209614b7",
    "4e3bbb1f7b478dcfe71fb631631519a3bca12c9aefca1612bfce4c13a86264d4",
    "76e67dadbcdf1e10e1b74ddc608abd2f98dfb16fbce75277b5232a127f2087ef",
    "ddb89be403809e325750d3d263cd78929c2942b7942a34b77e122c9594a74c8c",
    "5dc9da79a70659a9ad559cb701ded9a2ab9d823aad2f4960cfe370eff4604328",
]
"""Of the first 0 to 8 entries, as Certificate Transparency publishes them."""


def mth(entries: list[bytes]) -> bytes:
    """RFC 6962 §2.1 to the letter."""
    if not entries:
        return hashlib.sha256(b"").digest()
    if len(entries) == 1:
        return hashlib.sha256(b"\x00" + entries[0]).digest()
    k = max(2**i for i in range(20) if 2**i < len(entries))
    return hashlib.sha256(b"\x01" + mth(entries[:k]) + mth(entries[k:])).digest()


def grown(size: int) -> list[bytes]:
    return [f"entry {index}".encode() for index in range(size)]


def over(entries: list[bytes]):
    return lambda start, end: mth(entries[start:end])


def test_roots_are_those_that_certificate_transparency_publishes():
    for size, expected in enumerate(ROOTS):
        assert tree.root([tree.leaf_hash(entry) for entry in ENTRIES[:size]]).hex() == expected


@pytest.mark.parametrize(
    ("index", "size", "proof"),
    [
        (0, 8, ["96a296d224f285c67bee93c30f8a309157f0daa35dc5b87e410b78630a09cfc7",
                "5f083f0a1a33ca076a95279832580db3e0ef4584bdff1f54c8a360f50de3031e",
                "6b47aaf29ee3c2af9af889bc1fb9254dabd31177f16232dd6aab035ca39bf6e4"]),
        (2, 3, ["fac54203e7cc696cf0dfcb42c92a1d9dbaf70ad9e621f4bd8d98662f00e3c125"]),
        (1, 5, ["6e340b9cffb37a989ca544e6bb780a2c78901d3fb33738768511a30617afa01d",
                "5f083f0a1a33ca076a95279832580db3e0ef4584bdff1f54c8a360f50de3031e",
                "bc1a0643b12e4d2d7c77918f44e0f4f79a838b6cf9ec5b5c283e1f4d88599e6b"]),
    ],
)  # fmt: skip
def test_proofs_of_inclusion_are_the_published_ones(index, size, proof):
    hashes = tree.hashes_of(tree.inclusion_ranges(index, size), over(ENTRIES))
    assert [one.hex() for one in hashes] == proof


@pytest.mark.parametrize(
    ("first", "size", "proof"),
    [
        (1, 1, []),
        (1, 8, ["96a296d224f285c67bee93c30f8a309157f0daa35dc5b87e410b78630a09cfc7",
                "5f083f0a1a33ca076a95279832580db3e0ef4584bdff1f54c8a360f50de3031e",
                "6b47aaf29ee3c2af9af889bc1fb9254dabd31177f16232dd6aab035ca39bf6e4"]),
        (6, 8, ["0ebc5d3437fbe2db158b9f126a1d118e308181031d0a949f8dededebc558ef6a",
                "ca854ea128ed050b41b35ffc1b87b8eb2bde461e9e3b5596ece6b9d5975a0ae0",
                "d37ee418976dd95753c1c73862b9398fa2a2cf9b4ff0fdfe8b30cd95209614b7"]),
        (2, 5, ["5f083f0a1a33ca076a95279832580db3e0ef4584bdff1f54c8a360f50de3031e",
                "bc1a0643b12e4d2d7c77918f44e0f4f79a838b6cf9ec5b5c283e1f4d88599e6b"]),
    ],
)  # fmt: skip
def test_proofs_of_consistency_are_the_published_ones(first, size, proof):
    hashes = tree.hashes_of(tree.consistency_ranges(first, size), over(ENTRIES))
    assert [one.hex() for one in hashes] == proof


def test_every_proof_of_every_small_tree_holds_here_and_in_a_second_implementation():
    for size in range(1, 34):
        entries = grown(size)
        total, subtree = mth(entries), over(entries)
        assert tree.root([tree.leaf_hash(entry) for entry in entries]) == total
        for index in range(size):
            proof = tree.hashes_of(tree.inclusion_ranges(index, size), subtree)
            leaf = tree.leaf_hash(entries[index])
            assert tree.check_inclusion(leaf, index, size, proof, total)
            InclusionProof(index, size, proof).check(leaf, total)
        for first in range(1, size + 1):
            proof = tree.hashes_of(tree.consistency_ranges(first, size), subtree)
            assert tree.check_consistency(first, size, mth(entries[:first]), total, proof)
            ConsistencyProof(first, size, proof).check(mth(entries[:first]), total)


def judged(proof, error, *roots) -> bool:
    """What tlog-scales says of a proof."""
    try:
        proof.check(*roots)
    except (error, AssertionError, IndexError, ValueError):
        return False
    return True


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_a_changed_proof_of_inclusion_is_refused_by_both(data):
    size = data.draw(st.integers(1, 40))
    entries = grown(size)
    index = data.draw(st.integers(0, size - 1))
    proof = tree.hashes_of(tree.inclusion_ranges(index, size), over(entries))
    leaf, claimed, total = tree.leaf_hash(entries[index]), index, mth(entries)
    change = data.draw(st.sampled_from(["index", "leaf", "longer", "shorter", "hash", "root"]))
    if change == "index":
        claimed = data.draw(st.integers(0, size + 3).filter(lambda one: one != index))
    elif change == "leaf":
        leaf = tree.leaf_hash(b"another")
    elif change == "longer":
        proof.append(bytes(32))
    elif change == "root":
        total = bytes(32)
    elif proof:
        place = data.draw(st.integers(0, len(proof) - 1))
        proof[place : place + 1] = [] if change == "shorter" else [bytes(32)]
    else:
        return
    assert not tree.check_inclusion(leaf, claimed, size, proof, total)
    if claimed < size:
        assert not judged(InclusionProof(claimed, size, proof), InclusionProofInvalid, leaf, total)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_a_changed_proof_of_consistency_is_refused_by_both(data):
    size = data.draw(st.integers(2, 40))
    first = data.draw(st.integers(1, size - 1))
    entries = grown(size)
    proof = tree.hashes_of(tree.consistency_ranges(first, size), over(entries))
    old, new = mth(entries[:first]), mth(entries)
    change = data.draw(st.sampled_from(["old", "new", "longer", "shorter", "hash"]))
    if change == "old":
        old = mth([*entries[: first - 1], b"rewritten"])
    elif change == "new":
        new = mth([b"rewritten", *entries[1:]])
    elif change == "longer":
        proof.append(bytes(32))
    else:
        place = data.draw(st.integers(0, len(proof) - 1))
        proof[place : place + 1] = [] if change == "shorter" else [bytes(32)]
    assert not tree.check_consistency(first, size, old, new, proof)
    assert not judged(ConsistencyProof(first, size, proof), ConsistencyProofInvalid, old, new)


def test_sizes_that_cannot_be_are_refused():
    assert not tree.check_inclusion(bytes(32), 0, 0, [], tree.EMPTY)
    assert not tree.check_inclusion(bytes(32), -1, 4, [], bytes(32))
    assert not tree.check_consistency(3, 2, bytes(32), bytes(32), [])
    assert not tree.check_consistency(-1, 2, bytes(32), bytes(32), [])
    assert tree.check_consistency(0, 2, tree.EMPTY, bytes(32), [])
    assert not tree.check_consistency(0, 2, bytes(32), bytes(32), [])
    assert not tree.check_consistency(3, 5, bytes(32), bytes(32), [])
