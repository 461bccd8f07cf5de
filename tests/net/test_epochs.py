"""What an epoch pays, and every way in which a log can tell of another payment."""

from typing import Any

import pytest

from atoll.net import audit, epochs, facts, history, ledger, rules
from atoll.net.audit import Asked
from tests.net.past import PEOPLE, Past, honest, sha

ANN, BOB = (PEOPLE[name]["account"] for name in ("ann", "bob"))
POOL = 100_000


def valued(number: int = 0, **values: tuple[float, float]) -> facts.Epoch:
    worth = {name.replace("_", " "): value for name, value in (values or {"expert_0": (3.0, 1.0)}).items()}
    networks = dict.fromkeys(worth, sha("state 2"))
    return facts.Epoch(epoch=number, pool=POOL, seed=7, values=worth, networks=networks)


def state(past: Past, epoch: facts.Epoch, paid: dict[str, int]) -> None:
    past.say("epoch", **epoch.model_dump(mode="json"))
    lines = [(account, "escrow", "expert 0", amount) for account, amount in paid.items()]
    entries = [("treasury", "treasury", "", -sum(paid.values())), *lines]
    past.say("credit", event=f"epoch {epoch.epoch}", reason="worth", entries=entries)


@pytest.fixture
def past() -> Past:
    """Ann did two of three segments of the only expert; all of the pool is paid, 2 : 1."""
    made = honest(3)
    credit = {"seed": 7, "pool": 100.0}
    made.manifest = made.manifest.model_copy(update={"resolved": {"name": "tiny", "credit": credit}})
    made.change("manifest", manifest=made.manifest.model_dump(mode="json"))
    for number, (kind, tree, at) in enumerate(made.said):
        if kind == "lease":
            definition = {**tree["definition"], "run": made.run}
            made.said[number] = (kind, {**tree, "definition": definition}, at)
    return made


def earned(past: Past) -> dict[str, int]:
    known = rules.Known(history.read(past.publish()))
    return dict(epochs.makers(known, 10**6)["expert 0"])


def found(past: Past) -> dict[str, str]:
    page = audit.audit(past.publish(), Asked(now=1e6))
    return {check.name: " / ".join(check.faults) for check in page.checks if check.faults}


def shares(past: Past) -> dict[str, int]:
    """By hand: floors of the pool by segments."""
    work = earned(past)
    return {name: POOL * part // sum(work.values()) for name, part in sorted(work.items())}


def test_an_epoch_is_paid_to_who_made_the_parts_and_the_audit_says_so(past):
    assert sorted(earned(past).values()) == [100, 200]
    state(past, valued(), shares(past))
    assert found(past) == {}
    page = audit.audit(past, Asked(now=1e6))
    assert "✓ parts are paid for by their stated values, to who made them (4)" in page.text


def test_values_are_smoothed_over_the_epochs_before(past):
    """By hand: φ - SE of 2 and 1 are smoothed to 0.4 and 0.2; then 0 and 5 to 0.32 and 1.16."""
    makers = {"a": {ANN: 1}, "b": {BOB: 3, ANN: 1}}
    one = valued(0, a=(3.0, 1.0), b=(1.5, 0.5))
    two = valued(1, a=(0.5, 1.0), b=(6.0, 1.0))
    (first,) = epochs.events([one], makers).values()
    b = POOL * (0.15 + 0.7 / 3)
    assert [entry.amount for entry in first[1:]] == [int(POOL * (0.15 + 0.7 * 2 / 3)), *_floors(b, 1, 3)]
    (second,) = epochs.events([one, two], makers).values()
    assert second[1].amount == int(POOL * (0.15 + 0.7 * 0.32 / 1.48))
    assert ledger.problem(second) is None
    assert epochs.events([valued(0, a=(3.0, 1.0))], {}) == {}, "nobody made it"


def _floors(amount: float, *parts: int) -> list[int]:
    whole = [int(amount) * part // sum(parts) for part in parts]
    return whole if ANN < BOB else whole[::-1]


def stated_twice(past: Past) -> None:
    state(past, valued(), shares(past))
    state(past, valued(), shares(past))


def another_pool(past: Past) -> None:
    state(past, valued().model_copy(update={"pool": 2 * POOL}), {k: 2 * v for k, v in shares(past).items()})


def another_seed(past: Past) -> None:
    state(past, valued().model_copy(update={"seed": 8}), shares(past))


def weights_of_nobody(past: Past) -> None:
    state(past, valued().model_copy(update={"networks": {"expert 0": sha("elsewhere")}}), shares(past))


def no_networks(past: Past) -> None:
    state(past, valued().model_copy(update={"networks": {}}), shares(past))


def paid_to_a_friend(past: Past) -> None:
    state(past, valued(), {BOB: POOL})


def not_paid(past: Past) -> None:
    past.say("epoch", **valued().model_dump(mode="json"))


def paid_before_it_was_stated(past: Past) -> None:
    state(past, valued(), shares(past))
    past.said[-2:] = past.said[-2:][::-1]


def an_error_below_zero(past: Past) -> None:
    state(past, valued(expert_0=(3.0, -1.0)), shares(past))


@pytest.mark.parametrize(
    "wrong",
    [
        stated_twice,
        another_pool,
        another_seed,
        weights_of_nobody,
        no_networks,
        paid_to_a_friend,
        not_paid,
        paid_before_it_was_stated,
        an_error_below_zero,
    ],
)
def test_what_is_false_is_seen(past: Past, wrong: Any):
    wrong(past)
    assert "epochs" in found(past)


def test_credit_in_the_name_of_an_epoch_that_nobody_stated_pays_for_no_work(past):
    entries = ledger.earn(ANN, 5, "expert 0")
    past.say("credit", event="epoch 0", reason="worth", entries=[list(one) for one in entries])
    assert "pays for no work" in found(past)["credit"]


def test_work_that_does_not_stand_is_not_paid_for(past):
    before = earned(past)
    unit = "expert 0 @ 20..30"
    past.say("decision", submission="s2", unit=unit, state="rejected", reason="it was false")
    after = earned(past)
    assert sum(before.values()) - sum(after.values()) == 100


def test_terms_are_the_manifests():
    assert epochs.terms({"seed": 3, "credit": {"seed": None, "pool": 0.5}}) == (500, 3)
    assert epochs.terms({"seed": 3, "credit": {"seed": 4, "pool": 1}}) == (1000, 4)
    assert epochs.terms({}) == (0, 0)
