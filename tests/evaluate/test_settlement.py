"""Epoch after epoch: paid by audited values, signed, and going on from what was signed before."""

import json

import pytest

from atoll import config
from atoll.credit import payment, signature
from atoll.credit.payment import Account
from atoll.errors import CorruptError
from atoll.evaluate import evaluation, settlement
from atoll.evaluate.intervals import NORMAL
from atoll.runs import CREDIT, Run, read_json, stamped, write_json
from tests.credit.test_signature import pem


def run_of(tmp_path, epoch=0):
    (tmp_path / CREDIT).parent.mkdir(exist_ok=True)
    return Run(tmp_path, config.validate({"name": "x", "credit": {"epoch": epoch, "pool": 50.0}}, "a test"))


def record(*values):
    """A record in which parts have these audited values and errors."""
    facts = [{"value": v, "low": v - NORMAL * e, "high": v + NORMAL * e} for v, e in values]
    return {
        "commitment": "c",
        "held_out": {"samples": 5},
        "networks": "n",
        "parts": [{"part": f"expert {k}", "audited": one} for k, one in enumerate(facts)],
    }


def test_values_by_number_with_their_errors():
    one = record((3.0, 1.0), (1.0, 0.5))
    one["parts"][1]["number"] = 4
    assert {k: pytest.approx(v) for k, v in settlement.audited(one).items()} == {0: (3.0, 1.0), 4: (1.0, 0.5)}


def test_an_epoch_is_paid_by_the_rule_and_signed(tmp_path):
    key = pem(tmp_path / "key.pem")
    path = settlement.settle(run_of(tmp_path), record((3.0, 1.0), (1.0, 0.5)), key)
    document = signature.verified(read_json(path), signature.public_key(key), str(path))
    values = {"expert 0": (3.0, 1.0), "expert 1": (1.0, 0.5)}
    expected = payment.settle(50.0, values, dict.fromkeys(values, 1.0), {})
    assert document["pay"] == pytest.approx(dict(expected.pay))
    assert sum(document["pay"].values()) == pytest.approx(50)
    assert (document["epoch"], document["commitment"], document["networks"]) == (0, "c", "n")
    assert path.name == "epoch-00000.json"


def test_the_next_epoch_goes_on_from_what_was_signed(tmp_path):
    key = pem(tmp_path / "key.pem")
    settlement.settle(run_of(tmp_path), record((3.0, 0.0), (1.0, 0.0)), key)
    path = settlement.settle(run_of(tmp_path, 1), record((1.0, 0.0), (1.0, 0.0)), key)
    accounts = read_json(path)["document"]["accounts"]
    assert accounts["expert 0"]["smoothed"] == pytest.approx(0.8 * 0.2 * 3 + 0.2 * 1)
    assert Account(**accounts["expert 1"]).smoothed == pytest.approx(0.8 * 0.2 + 0.2)


def test_paying_an_epoch_again_gives_the_same_file(tmp_path):
    key = pem(tmp_path / "key.pem")
    one = settlement.settle(run_of(tmp_path), record((3.0, 1.0)), key).read_bytes()
    assert settlement.settle(run_of(tmp_path), record((3.0, 1.0)), key).read_bytes() == one


def test_an_earlier_epoch_that_was_changed_stops_everything(tmp_path):
    key = pem(tmp_path / "key.pem")
    first = settlement.settle(run_of(tmp_path), record((3.0, 1.0)), key)
    envelope = read_json(first)
    envelope["document"]["accounts"]["expert 0"]["smoothed"] = 99.0
    write_json(first, envelope)
    with pytest.raises(CorruptError, match="is not what was signed"):
        settlement.settle(run_of(tmp_path, 1), record((3.0, 1.0)), key)
    assert not settlement.epoch_file(first.parent, 1).exists(), "nothing half-written"


def test_a_signed_file_that_holds_no_accounts_is_refused(tmp_path):
    key = pem(tmp_path / "key.pem")
    run = run_of(tmp_path, 1)
    documents: list[dict[str, object]] = [{"pay": {}}, {"accounts": {"a": {"wealth": 3}}}, {"accounts": [1]}]
    for document in documents:
        path = settlement.epoch_file((run.path / CREDIT).parent, 0)
        path.write_text(json.dumps(signature.signed(document, key)))
        with pytest.raises(CorruptError, match="holds no accounts"):
            settlement.settle(run, record((1.0, 0.1)), key)


def test_who_harms_is_paid_for_being_there_alone(tmp_path):
    key = pem(tmp_path / "key.pem")
    path = settlement.settle(run_of(tmp_path), record((3.0, 0.1), (-2.0, 0.1)), key)
    document = read_json(path)["document"]
    assert document["pay"]["expert 1"] == pytest.approx(50 * payment.FLAT / 2)
    assert document["accounts"]["expert 1"]["strikes"] == 1


def test_a_picture_pays_by_its_shares_scaled_by_audited_values(tmp_path):
    run = run_of(tmp_path)
    parts = [
        {"audited": {"value": value}, "routed": {"value": usual}}
        for value, usual in ((3.0, 0.5), (1.0, 0.25), (-1.0, 0.25))
    ]
    assert settlement.royalties(run, [[1.0, 0.0, 0.0]]) is None, "nothing was valued"
    write_json(run.path / CREDIT, stamped({"networks": evaluation.networks(run), "parts": parts}))
    # Mean weights 0.5, 0.25, 0.25: 0.5 * 3 / 0.5 and 0.25 * 1 / 0.25; who harms has nothing.
    paid = settlement.royalties(run, [[1.0, 0.0, 0.0], [0.0, 0.5, 0.5]])
    assert paid == pytest.approx([0.75, 0.25, 0.0])
    # With shares of what was said beyond the base: 0.8 * 3 / 2 and 0.2 * 1 / 0.5.
    said = [{**part, "display": {"value": usual}} for part, usual in zip(parts, (2.0, 0.5, 0.0), strict=True)]
    write_json(run.path / CREDIT, stamped({"networks": evaluation.networks(run), "parts": said}))
    paid = settlement.royalties(run, [[1.0, 0.0, 0.0]], [0.8, 0.2, 0.0])
    assert paid == pytest.approx([0.75, 0.25, 0.0])
    write_json(run.path / CREDIT, stamped({"networks": "others", "parts": parts}))
    assert settlement.royalties(run, [[1.0, 0.0, 0.0]]) is None, "other networks were valued"
