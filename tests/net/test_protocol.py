"""Messages: what is no message is refused in one line, what is one comes back as it was."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atoll.net import protocol, require_libraries
from atoll.net.protocol import File, Numerics, ProtocolError, Result, Unit, parse

KINDS = [
    kind
    for kind in vars(protocol).values()
    if isinstance(kind, type) and issubclass(kind, protocol.Message) and kind is not protocol.Message
]


def test_the_libraries_are_here():
    require_libraries()


def unit(**changes):
    return Unit(run="a" * 64, name="expert 1 @ 0..10", stage="expert 1", role="train", **changes)


def test_a_unit_is_known_by_what_it_is():
    assert unit().digest == parse(Unit, unit().model_dump_json().encode()).digest
    assert unit().digest != unit(last=10).digest
    shuffled = dict(reversed(json.loads(unit().model_dump_json()).items()))
    assert parse(Unit, json.dumps(shuffled).encode()).digest == unit().digest


def test_numerics_differ_by_each_part():
    changes = [{"device": "cuda"}, {"torch": "2"}, {"precision": "x"}, {"threads": 2}, {"compiled": True}]
    classes = [Numerics(), *(Numerics(**one) for one in changes), Numerics(micro_batch=3)]
    assert len({one.digest for one in classes}) == 7


@pytest.mark.parametrize(
    "path", ["../x", "/etc/passwd", "a/../b", ".hidden", "a\\b", "c:x", "", "a//b", "a\nb"]
)
def test_no_name_leads_out(path):
    body = json.dumps({"path": path, "sha256": "0" * 64, "size": 1}).encode()
    with pytest.raises(ProtocolError):
        parse(File, body)


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"[]", b"\xff", b'{"x": 1}', b"[" * 100_000, b'{"unit": NaN}', b" " * (protocol.BODY + 1)],
)
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_what_is_no_message_is_refused_in_one_line(kind, body):
    try:
        parse(kind, body)
    except ProtocolError as error:
        assert "\n" not in str(error) and len(str(error)) < 400
    else:
        assert body == b"{}"


def test_numbers_are_numbers():
    body = Result(unit="a" * 64, numerics=Numerics()).model_dump(mode="json")
    for bad in (float("nan"), float("inf"), -1.0, "x", None):
        with pytest.raises(ProtocolError):
            parse(Result, json.dumps({**body, "seconds": bad}).encode())


@given(st.binary(max_size=200) | st.text(max_size=100).map(str.encode))
def test_nothing_that_comes_is_anything_but_a_message_or_a_refusal(body):
    for kind in KINDS:
        try:
            message = parse(kind, body)
        except ProtocolError:
            continue
        assert parse(kind, message.model_dump_json().encode()) == message
