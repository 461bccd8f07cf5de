"""Headers against the library that writes them; chains, norms, speed and copies by hand."""

import json
import math
import struct
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from atoll.net.verification import admission
from atoll.net.verification.admission import Findings, Known, Malformed, Tensor

STATE = {
    "model/a": torch.arange(6, dtype=torch.float32).reshape(2, 3),
    "ema/a": torch.zeros(2, 3),
    "optimiser/step/a": torch.zeros(()),
    "scale/good": torch.zeros(1, dtype=torch.int32),
    "half": torch.zeros(4, dtype=torch.bfloat16),
    "none": torch.zeros(0, 3),
}


@pytest.fixture
def state(tmp_path: Path) -> Path:
    path = tmp_path / "state.safetensors"
    save_file(STATE, path)
    return path


def test_a_header_says_what_the_library_says(state):
    tensors = admission.header(state)
    with safe_open(state, "pt") as file:
        assert {name: (one.dtype, one.shape) for name, one in tensors.items()} == {
            name: (file.get_slice(name).get_dtype(), tuple(file.get_slice(name).get_shape()))
            for name in file.keys()  # noqa: SIM118 - it is no mapping
        }


def test_metadata_is_no_tensor(tmp_path):
    save_file({"a": torch.zeros(2)}, tmp_path / "m", metadata={"by": "somebody"})
    assert admission.header(tmp_path / "m") == {"a": Tensor("F32", (2,))}


def written(path: Path, tree: object, data: bytes = b"") -> Path:
    text = json.dumps(tree).encode() if not isinstance(tree, bytes) else tree
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)
    return path


def entry(shape=(2,), dtype="F32", offsets=(0, 8), **more):
    return {"dtype": dtype, "shape": list(shape), "data_offsets": list(offsets), **more}


@pytest.mark.parametrize(
    ("tree", "size", "words"),
    [
        ([], 0, "no table"),
        (b"{", 0, "no JSON|has 1 bytes"),
        (b'{"a": 1, "a": 1}', 0, "twice"),
        (b"[" * 50_000, 0, "no JSON"),
        ({"a": 3}, 0, "type, shape and place"),
        ({"a": entry(dtype="X")}, 8, "cannot hold"),
        ({"a": entry(more=1)}, 8, "cannot hold"),
        ({"a": entry(shape=(-2,))}, 8, "cannot hold"),
        ({"a": entry(shape=(True, 2))}, 8, "cannot hold"),
        ({"a": entry(shape=(2**41,))}, 8, "cannot hold"),
        ({"a": entry(shape=(3,))}, 8, "bytes of its shape"),
        ({"a": entry(offsets=(-8, 0))}, 0, "overlap or leave gaps"),
        ({"a": entry(), "b": entry()}, 8, "overlap"),
        ({"a": entry(), "b": entry(offsets=(9, 17))}, 17, "gaps"),
        ({"a": entry()}, 9, "belong to no tensor"),
        ({"a": entry()}, 7, "belong to no tensor"),
    ],
)
def test_files_that_pretend(tmp_path, tree, size, words):
    with pytest.raises(Malformed, match=words):
        admission.header(written(tmp_path / "x", tree, b"\0" * size))


def test_a_header_that_is_too_long_is_not_read(tmp_path):
    path = tmp_path / "x"
    path.write_bytes(struct.pack("<Q", 2**60) + b"{}")
    with pytest.raises(Malformed, match="bytes, of"):
        admission.header(path)
    path.write_bytes(b"\0\0")
    with pytest.raises(Malformed, match="ends within"):
        admission.header(path)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=50)
@given(data=st.data())
def test_whatever_is_changed_the_library_is_never_stricter(state, tmp_path, data):
    """Cut, replace or insert anywhere: what passes here, the library opens as well."""
    raw = bytearray(state.read_bytes())
    place = data.draw(st.integers(0, len(raw) - 1))
    raw[place : place + data.draw(st.integers(0, 3))] = data.draw(st.binary(max_size=3))
    path = tmp_path / "changed.safetensors"
    path.write_bytes(bytes(raw))
    try:
        tensors = admission.header(path)
    except Malformed:
        return
    try:
        with safe_open(path, "pt") as file:
            assert set(file.keys()) == set(tensors)
    except SafetensorError as error:  # it sorts out a few names and paddings that we do not
        assert "header" in str(error).lower() or "metadata" in str(error).lower()


def test_shapes(state, tmp_path):
    expected = admission.header(state)
    assert admission.shapes(state, expected).admitted
    assert admission.shapes(state, None).admitted
    fewer = {name: one for name, one in STATE.items() if name != "half"}
    save_file(fewer, tmp_path / "fewer")
    assert "'half' is missing" in admission.shapes(tmp_path / "fewer", expected).faults["shapes"]
    save_file({**STATE, "more": torch.zeros(1)}, tmp_path / "more")
    assert "'more' is not asked for" in admission.shapes(tmp_path / "more", expected).faults["shapes"]
    save_file({**STATE, "ema/a": torch.zeros(3, 2)}, tmp_path / "other")
    assert "'ema/a' has another form" in admission.shapes(tmp_path / "other", expected).faults["shapes"]
    (tmp_path / "empty").write_bytes(b"")
    assert "malformed" in admission.shapes(tmp_path / "empty", expected).faults


HASHES = [f"{number:064x}" for number in range(5)]


@pytest.mark.parametrize(
    ("hashes", "words"),
    [
        (HASHES, None),
        (HASHES[:-1], "4 hashes for 5 points"),
        ([*HASHES[:4], "zz"], "sha256"),
        ([HASHES[1], *HASHES[1:]], "handed out"),
        ([*HASHES[:4], HASHES[3]], "handed in"),
        ([*HASHES[:3], HASHES[2], HASHES[4]], "comes twice"),
    ],
)
def test_chains(hashes, words):
    """Points 40, 50, 60, 70 and the last, 75."""
    findings = admission.chain(hashes, 40, 75, 10, HASHES[0], HASHES[4])
    assert findings.admitted == (words is None)
    assert words is None or words in findings.faults["chain"]


def test_speed():
    assert admission.speed(100.0, 10.0, 10.0) == Findings()
    assert admission.speed(100.0, 10.0, None) == Findings()
    assert admission.speed(100.0, 0.0, 10.0) == Findings()
    assert "10.0 times" in admission.speed(1000.0, 10.0, 10.0).doubts["speed"]


def test_the_band_of_norms_by_hand():
    assert admission.usual([1.0] * 4) is None
    assert admission.usual([1.0] * 9) == pytest.approx((1 / 1.5, 1.5))
    logs = [-2.0, -1.0, 0.0, 1.0, 2.0]  # median 0, median distance 1
    edges = admission.usual([math.exp(value) for value in logs])
    assert edges == pytest.approx((math.exp(-4 * 1.4826), math.exp(4 * 1.4826)))


def facts(**changes):
    return {"finite": True, "changed": 1.0, "norm": 1.0, "sketch": [1.0, 0.0, 0.0], **changes}


def test_numbers():
    known = Known([1.0] * 9, {"unit b": [0.0, 1.0, 0.0]})
    assert admission.numbers(facts(), known) == Findings()
    assert set(admission.numbers(facts(finite=False), known).faults) == {"finite"}
    assert set(admission.numbers(facts(changed=0.0), known).faults) == {"unchanged"}
    assert set(admission.numbers(facts(changed=0.3), known).doubts) == {"changed"}
    assert set(admission.numbers(facts(norm=1.6), known).doubts) == {"norm"}
    assert set(admission.numbers(facts(norm=0.6), known).doubts) == {"norm"}
    assert "unit b" in admission.numbers(facts(sketch=[0.1, 1.0, 0.0]), known).doubts["copy"]


def test_findings_add_up():
    both = Findings({"a": "1"}) | Findings(doubts={"b": "2"})
    assert both == Findings({"a": "1"}, {"b": "2"})
    assert not both.admitted


def test_the_cosine_of_nothing_is_nothing():
    assert admission.cosine([0.0, 0.0], [1.0, 0.0]) == 0.0


def test_a_network_is_the_averaged_one_of_its_last_state(tmp_path):
    import torch
    from safetensors.torch import save_file

    averaged, table = torch.arange(6.0).reshape(2, 3), torch.ones(2)
    save_file({"ema/w": averaged, "model/w": averaged + 1}, tmp_path / "state")
    for tensors, right in (
        ({"w": averaged, "position": table}, True),
        ({"w": averaged + 1}, False),
        ({"w": averaged.reshape(3, 2).clone()}, True),  # the same bytes; its shape is the record's affair
        ({"w": averaged[:1].clone()}, False),
        ({"position": table}, False),
    ):
        save_file(tensors, tmp_path / "weights")
        assert admission.weights(tmp_path / "state", tmp_path / "weights").admitted is right
    (tmp_path / "weights").write_bytes(b"no network")
    assert "weights" in admission.weights(tmp_path / "state", tmp_path / "weights").faults
