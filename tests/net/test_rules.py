"""Rules on histories that are right in unusual ways; those that are wrong are in test_audit."""

import json

import pytest

from atoll.net import history, ledger, lineage, rules, statements
from atoll.net.verification import drand
from atoll.net.verification.beacon import BeaconSettings
from tests.net import past as room
from tests.net.past import PEOPLE, Past, honest


def known(past: Past) -> rules.Known:
    return rules.Known(history.read(past.publish()))


def broken(past: Past) -> dict[str, list[str]]:
    found = {name: list(rule(known(past))) for name, rule in rules.RULES.items()}
    return {name: faults for name, faults in found.items() if faults}


def test_a_correction_is_allowed():
    past = honest()
    account = PEOPLE["ann"]["account"]
    entries = ledger.opposite(ledger.earn(account, 100, "expert 0"))
    past.say("credit", event="correction of earn s0", reason="wrong", entries=[list(one) for one in entries])
    assert broken(past) == {}


def test_escrow_is_forfeited_on_a_hard_verdict_and_the_unit_done_again():
    past = honest(1)
    account = PEOPLE["ann"]["account"]
    unit = "expert 0 @ 0..10"
    past.say(
        "verdict", submission="s0", unit=unit, check="replay", verdict="fail", hard=True,
        by=PEOPLE["bob"]["account"],
    )  # fmt: skip
    past.say("decision", submission="s0", unit=unit, state="rejected", reason="another update")
    entries = [list(one) for one in ledger.forfeit(account, 100, "expert 0")]
    past.say("credit", event="forfeit s0", reason="hard", entries=entries, submission="s0")
    assert broken(past) == {}
    assert list(known(past).standing()) == []
    assert set(lineage.files(known(past))) == {"data/part-0"}


def test_who_handed_over_on_the_way_is_paid_too():
    past = honest(1)
    lease = next(facts for kind, facts, _ in past.said if kind == "lease")
    bob = {key: PEOPLE["bob"][key] for key in ("account", "device")}
    earlier = {**lease, **bob, "lease": "before"}
    past.change("lease", fence=2)
    past.change("result", fence=2)
    past.said.insert(3, ("lease", earlier, 25.0))
    parts = [ledger.earn(PEOPLE[name]["account"], 50, "expert 0") for name in ("ann", "bob")]
    past.change("credit", entries=[list(one) for one in parts[0]])
    past.say(
        "credit", event="earn s0 bob", reason="", entries=[list(one) for one in parts[1]], submission="s0"
    )
    assert broken(past) == {}


def test_files_are_those_of_work_that_stands_in_the_order_of_the_log():
    past = honest(3)
    states = {
        f"experts/00/state/step-000000{step}.safetensors": f"state {step // 10 - 1}" for step in (10, 20, 30)
    }
    expected = {"data/part-0": room.sha("data"), **{path: room.sha(text) for path, text in states.items()}}
    assert {path: file.sha256 for path, file in lineage.files(known(past)).items()} == expected
    past.change("result", 2, removed=["experts/00/state/step-00000010.safetensors"])
    assert "experts/00/state/step-00000010.safetensors" not in lineage.files(known(past))


def test_a_quorum_needs_as_many_accounts():
    past = honest(1)
    lease = next(facts for kind, facts, _ in past.said if kind == "lease")
    past.change("lease", definition={**lease["definition"], "quorum": 2})
    assert "by 1 accounts, and 2 must agree" in broken(past)["decisions"][0]


def test_what_a_device_signed_must_be_what_is_in_the_log():
    past = honest(1)
    result = next(facts for kind, facts, _ in past.said if kind == "result")
    for key, chain, right in (
        (room.ANN_DEVICE, result["chain"], True),
        (room.ANN_DEVICE, ["00" * 32], False),
        (room.BOB_DEVICE, result["chain"], False),
    ):
        envelope = statements.Signer(key, past.run).envelope("commitment", {"chain": chain}, 1.0)
        past.change("result", signed=json.loads(envelope))
        assert ("results" not in broken(past)) is right


@pytest.mark.parametrize("policy", [{}, {"audit": {}}])
def test_without_a_promise_of_audits_nobody_is_held_to_one(policy):
    past = Past()
    past.manifest = past.manifest.model_copy(update={"policy": policy})
    past.say("manifest", manifest=past.manifest.model_dump(mode="json"))
    for one in PEOPLE.values():
        past.say("account", **one)
    past.segment("ann", 0, "state", None)
    past.remove("beacon")
    past.remove("verdict")
    past.remove("verdict")
    assert ("decisions" in broken(past)) is bool(policy)


def test_who_is_shut_out_was_proven_false_and_gets_nothing_more():
    past, ann = honest(2), PEOPLE["ann"]["account"]
    past.say("ban", account=ann, reason="it was proven false", verdicts=[4])
    assert "without a hard verdict" in broken(past)["bans"][0]
    past = honest(1)
    unit, place = "expert 0 @ 0..10", len(past.said)
    verdict = {"submission": "s0", "unit": unit, "check": "replay", "verdict": "fail", "hard": True}
    past.say("verdict", **verdict, by=PEOPLE["bob"]["account"])
    past.say("decision", submission="s0", unit=unit, state="rejected", reason="another update")
    past.say("ban", account=ann, reason="it was proven false", verdicts=[place])
    assert broken(past) == {}
    lease = next(facts for kind, facts, _ in past.said if kind == "lease")
    past.say("lease", **{**lease, "lease": "later", "fence": 2})
    assert "went to an account that was shut out" in broken(past)["bans"][0]


@pytest.mark.parametrize(("url", "key", "here", "said"), [
    (None, "", False, 0),
    ("https://drand.example", "ab", True, 0),
    ("https://drand.example", "ab", False, 1),
    ("https://drand.example", "", True, 1),
])  # fmt: skip
def test_signatures_of_rounds_that_cannot_be_checked_are_told(monkeypatch, url, key, here, said):
    monkeypatch.setattr(drand, "is_here", lambda: here)
    monkeypatch.setattr(rules, "_beacon", lambda past, index: BeaconSettings(url=url, key=key))
    assert len(list(rules.unsigned_rounds(known(honest())))) == said
