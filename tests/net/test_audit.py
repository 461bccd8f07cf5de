"""What a stranger's audit says of an honest history, and of every way in which one can be false."""

import copy
import json
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from atoll.errors import ConfigError
from atoll.net import audit, keys, ledger, notes, tiles, tree
from atoll.net.audit import Asked
from atoll.net.statements import Signer
from atoll.net.verification.beacon import ChainBeacon
from tests.net import past as room
from tests.net.past import Past, honest

ASKED = Asked(now=1e6)


def faults(past: Past, asked: Asked = ASKED) -> dict[str, str]:
    page = audit.audit(past, asked)
    return {check.name: " / ".join(check.faults) for check in page.checks if check.faults}


def test_an_honest_history_holds_and_says_what_was_not_checked():
    page = audit.audit(honest().publish(), ASKED)
    assert page.holds
    states = {check.name: check.state for check in page.checks}
    unchecked = {name for name, state in states.items() if state == "unchecked"}
    assert unchecked == {"past", "receipts", "witnesses", "replay", "results"}, "nobody signed results here"
    assert "Nothing that was checked is false" in page.text
    assert "credit balances, once, for accepted work, at its price (3)" in page.text
    assert json.loads(json.dumps(page.facts))["entries"] == 24


def entry_altered(past: Past) -> None:
    past.publish()
    name = tiles.path("entries", 0, 24)
    entries = tiles.entries_of(past.files[name])
    entries[7] = entries[7][:-5] + bytes([entries[7][-5] ^ 1]) + entries[7][-4:]
    past.files[name] = tiles.bundle(entries)


def history_cut_off(past: Past) -> None:
    past.publish()
    name = tiles.path("entries", 0, 24)
    past.files[name] = tiles.bundle(tiles.entries_of(past.files[name])[:-3])


def checkpoint_of_another_key(past: Past) -> None:
    past.publish(key=Ed25519PrivateKey.generate())


def manifest_swapped(past: Past) -> None:
    envelopes = past.envelopes()
    other = {**past.manifest.model_dump(mode="json"), "price": 5}
    envelopes[0] = Signer(room.COORDINATOR, past.run).envelope("manifest", {"manifest": other}, 20.0)
    past.publish(envelopes)


def statement_of_somebody_else(past: Past) -> None:
    envelopes = past.envelopes()
    envelopes[9] = past.envelopes(key=room.ANN)[9]
    past.publish(envelopes)


def delegation_forged(past: Past) -> None:
    forged = {**room.PEOPLE["ann"]["delegation"], "signature": "00" * 64}
    past.change("account", delegation=forged)
    past.publish()


def lease_after_the_delegation_ended(past: Past) -> None:
    delegation = keys.delegate(room.ANN, keys.public_hex(room.ANN_DEVICE), 45.0)
    past.change("account", expires=45.0, delegation=delegation.model_dump(mode="json"))
    past.publish()


def result_without_a_lease(past: Past) -> None:
    past.change("result", 1, lease="never given")
    past.publish()


def fence_given_twice(past: Past) -> None:
    again = dict(next(facts for kind, facts, _ in past.said if kind == "lease"))
    past.say("lease", **{**again, "lease": "another"})
    past.publish()


def chain_that_does_not_begin_where_it_was_handed(past: Past) -> None:
    result = [facts for kind, facts, _ in past.said if kind == "result"][1]
    past.change("result", 1, chain=["00" * 32, result["chain"][1]])
    past.publish()


def randomness_ground(past: Past) -> None:
    draw = ChainBeacon(room.SECRET, room.BEACON, lambda: 1e9).draw(9)
    past.change("beacon", 1, round=draw.round, value=draw.value)
    past.publish()


def randomness_invented(past: Past) -> None:
    past.change("beacon", 1, value="11" * 32)
    past.publish()


def own_work_audited(past: Past) -> None:
    past.change("verdict", 1, by=room.PEOPLE["ann"]["account"])
    past.publish()


def accepted_without_a_verdict(past: Past) -> None:
    past.remove("verdict")
    past.remove("verdict")
    past.publish()


def accepted_against_a_hard_verdict(past: Past) -> None:
    past.change("verdict", 1, verdict="fail", hard=True)
    past.publish()


def unit_accepted_twice(past: Past) -> None:
    past.change("lease", 1, **_unit_of(past, 0))
    past.change("result", 1, unit="expert 0 @ 0..10", fence=2)
    past.change("verdict", 2, unit="expert 0 @ 0..10")
    past.change("verdict", 3, unit="expert 0 @ 0..10")
    past.change("decision", 1, unit="expert 0 @ 0..10")
    past.publish()


def _unit_of(past: Past, number: int) -> dict[str, Any]:
    lease = [facts for kind, facts, _ in past.said if kind == "lease"][number]
    return {"unit": lease["unit"], "definition": lease["definition"], "fence": 2}


def credit_out_of_nothing(past: Past) -> None:
    entries = [list(one) for one in ledger.earn(room.PEOPLE["bob"]["account"], 100, "expert 0")]
    past.say("credit", event="gift", reason="a friend", entries=entries, submission=None)
    past.publish()


def credit_above_the_price(past: Past) -> None:
    entries = [list(one) for one in ledger.earn(room.PEOPLE["ann"]["account"], 1000, "expert 0")]
    past.change("credit", entries=entries)
    past.publish()


def credit_paid_twice(past: Past) -> None:
    past.say("credit", **next(facts for kind, facts, _ in past.said if kind == "credit"))
    past.publish()


def credit_that_does_not_balance(past: Past) -> None:
    past.change(
        "credit",
        entries=[["treasury", "treasury", "", -90], [room.PEOPLE["ann"]["account"], "escrow", "", 100]],
    )
    past.publish()


def credit_taken_away_at_will(past: Past) -> None:
    entries = [list(one) for one in ledger.forfeit(room.PEOPLE["ann"]["account"], 100, "expert 0")]
    past.say("credit", event="forfeit", reason="because", entries=entries, submission="s0")
    past.publish()


def paid_before_it_was_accepted(past: Past) -> None:
    past.remove("decision")
    past.publish()


def artifact_altered(past: Past) -> None:
    past.artifacts[room.sha("state 1")] = b"state X"
    past.publish()


def artifact_missing(past: Past) -> None:
    del past.artifacts[room.sha("state 2")]
    past.publish()


def input_from_nowhere(past: Past) -> None:
    lease = [facts for kind, facts, _ in past.said if kind == "lease"][1]
    definition = copy.deepcopy(lease["definition"])
    definition["inputs"][1]["sha256"] = "22" * 32
    past.change("lease", 1, definition=definition)
    past.publish()


PLANTED = [
    (entry_altered, "tree", "entry 7 is another one than its tile says"),
    (history_cut_off, "entries", "has 21 entries, not 24"),
    (checkpoint_of_another_key, "checkpoint", "not signed with the key of this log"),
    (manifest_swapped, "manifest", "not the one that the statements are about"),
    (statement_of_somebody_else, "statements", "entry 9: a statement is signed by"),
    (delegation_forged, "accounts", "is not signed by its account"),
    (lease_after_the_delegation_ended, "leases", "for which its account does not stand"),
    (fence_given_twice, "leases", "has fence 1, and 1 was given before"),
    (result_without_a_lease, "results", "submission s1 of expert 0 @ 10..20 has no lease"),
    (chain_that_does_not_begin_where_it_was_handed, "results", "does not begin with the state"),
    (randomness_ground, "challenges", "was recorded in the place of round"),
    (randomness_invented, "challenges", "does not lead to the beacon's published anchor"),
    (own_work_audited, "verdicts", "was made by the account that did the work"),
    (accepted_without_a_verdict, "decisions", "expert 0 @ 0..10 accepted without a verdict"),
    (accepted_against_a_hard_verdict, "decisions", "against a verdict that nobody overruled"),
    (unit_accepted_twice, "decisions", "accepted twice: submission s0 stands as well"),
    (credit_out_of_nothing, "credit", "event 'gift' pays for no work"),
    (credit_above_the_price, "credit", "pays 1000 in all, and the lease's price is 100"),
    (credit_paid_twice, "credit", "event 'earn s0' is there twice"),
    (credit_that_does_not_balance, "credit", "add up to 10, not 0"),
    (credit_taken_away_at_will, "credit", "takes credit away without a hard verdict"),
    (paid_before_it_was_accepted, "credit", "pays for work that was not accepted"),
    (artifact_altered, "artifacts", "step-00000020.safetensors"),
    (artifact_missing, "artifacts", "is missing"),
    (input_from_nowhere, "lineage", "which nobody made"),
]


@pytest.mark.parametrize(("plant", "check", "words"), PLANTED, ids=lambda one: getattr(one, "__name__", ""))
def test_every_falsification_is_named(plant, check, words):
    past = honest()
    plant(past)
    named = faults(past)
    assert words in named[check]
    page = audit.audit(past, ASKED)
    assert not page.holds
    assert words in page.text.replace("\n      ", " ")


def test_a_state_that_was_replaced_since_may_be_let_go():
    past = honest()
    past.change("result", 2, removed=["experts/00/state/step-00000010.safetensors"])
    del past.artifacts[room.sha("state 0")]
    page = audit.audit(past.publish(), ASKED)
    check = next(check for check in page.checks if check.name == "artifacts")
    assert page.holds
    assert check.unchecked == ["1 files that were replaced since are not kept here"]


def test_a_history_that_was_rewritten_or_became_shorter_contradicts_what_was_remembered():
    before = honest(2).publish()
    remembered = notes.opened(before.files["checkpoint"], notes.public_hex(room.LOG))
    asked = Asked(remembered=remembered, now=1e6)
    assert faults(honest(3).publish(), asked) == {}
    other = honest(3)
    other.change("result", steps=9)
    assert "history was rewritten or forked" in faults(other.publish(), asked)["past"]
    assert "it has become shorter" in faults(honest(1).publish(), asked)["past"]


def test_a_receipt_that_was_not_kept_is_evidence():
    past = honest()
    signer = Signer(room.COORDINATOR, past.run)
    leaf = tree.leaf_hash(past.envelopes()[5]).hex()
    kept = signer.envelope("receipt", {"index": 5, "leaf": leaf, "deadline": 400.0}, 100.0)
    broken = signer.envelope("receipt", {"index": 90, "leaf": leaf, "deadline": 400.0}, 100.0)
    forged = Signer(room.ANN, past.run).envelope("receipt", {"index": 5, "leaf": leaf, "deadline": 4.0}, 1.0)
    past.publish()
    assert faults(past, Asked(receipts=[kept], now=1e6)) == {}
    assert "promised entry 90" in faults(past, Asked(receipts=[kept, broken], now=1e6))["receipts"]
    page = audit.audit(past, Asked(receipts=[broken], now=200.0))
    assert page.holds
    assert "receipt 1 cannot be checked" in faults(past, Asked(receipts=[forged], now=1e6))["receipts"]


def test_witnesses_who_cosigned_are_counted():
    past = honest().publish()
    public = notes.public_hex(room.BOB)
    past.files["checkpoint"] = notes.cosigned(past.files["checkpoint"], "w", room.BOB, 5)
    page = audit.audit(past, Asked(witnesses={"w": public, "x": public}, now=1e6))
    witnesses = next(check for check in page.checks if check.name == "witnesses")
    assert (witnesses.faults, witnesses.unchecked) == ([], ["x has not cosigned"])


def test_a_fork_goes_on_from_what_was_published():
    past = honest(2)
    leaves = [tree.leaf_hash(one) for one in past.envelopes()]
    facts = {
        "coordinator": notes.public_hex(room.BOB),
        "log": notes.public_hex(room.ANN),
        "origin": room.ORIGIN,
        "size": len(leaves),
        "root": tree.root(leaves).hex(),
    }
    fork = Signer(room.BOB, past.run).envelope("fork", facts, past.now)
    page = audit.audit(past.publish([*past.envelopes(), fork], key=room.ANN), ASKED)
    assert page.holds
    assert page.forks == (len(leaves),)
    assert "under another coordinator from entry 17 on" in page.text
    other = Signer(room.BOB, past.run).envelope("fork", {**facts, "root": "00" * 32}, past.now)
    assert "no say" in faults(past.publish([*past.envelopes(), other], key=room.ANN))["statements"]


def test_what_somebody_brings_along_is_read(tmp_path):
    past = honest().publish()
    (tmp_path / "since").write_bytes(past.files["checkpoint"])
    (tmp_path / "receipts").mkdir()
    (tmp_path / "receipts" / "a.json").write_bytes(b"{}")
    asked = audit.asked("ab", tmp_path / "since", tmp_path / "receipts", ["w=00"], 0, 3, 5.0)
    assert asked.remembered.size == 24
    assert asked.receipts == [b"{}"]
    assert asked.witnesses == {"w": "00"}
    with pytest.raises(ConfigError, match="there is no"):
        audit.asked(None, tmp_path / "nothing", None, [], 0, None, 0.0)
    with pytest.raises(ConfigError, match="NAME=KEY"):
        audit.asked(None, None, None, ["w"], 0, None, 0.0)
