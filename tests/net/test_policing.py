"""What a manifest promises about checks, and that it can be kept."""

import hashlib
import json

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from atoll.errors import AtollError, ConfigError, CorruptError
from atoll.net import policing
from atoll.net.policing import Rules
from atoll.net.protocol import Manifest, Numerics
from atoll.net.verification import bands
from atoll.net.verification.beacon import BeaconSettings, check
from atoll.net.verification.policy import AuditPolicy
from tests.clocks import ManualClock

KEY, OTHER = (Ed25519PrivateKey.from_private_bytes(bytes([byte]) * 32) for byte in (1, 2))
ROUNDS = policing.ROUNDS
"""As people have them, before tests make them fewer."""
RULES = Rules(AuditPolicy(floor=0.5, release=0.25), period=2.0, rounds=64)


def manifest(clock, key=KEY):
    return Manifest(name="tiny", resolved={}, policy={"quorum": 2, **RULES.published(key, clock.date())})


def test_the_policy_is_read_as_it_was_published_and_the_beacon_is_its_own():
    clock = ManualClock()
    published = manifest(clock)
    assert published.policy["escrow_units"] == 2
    police = policing.opened(published, KEY, clock)
    assert police is not None and police.audit == RULES.audit
    settings = BeaconSettings.model_validate(published.policy["beacon"])
    clock.time += 100
    check(settings, police.beacon.draw(7), 7)


def test_what_rates_promise_and_cost_is_said():
    """A quarter is replayed as a whole; of the rest one interval of eight, which misses seven of eight."""
    tree = manifest(ManualClock()).policy
    promises = tree["promises"]
    assert isinstance(promises, dict)
    assert promises["replayed_before_the_end"] == pytest.approx(0.25 + 0.75 / 8)
    assert promises["one_false_interval_missed"] == pytest.approx(0.75 * 7 / 8)
    assert promises["replayed_at_the_floor"] == pytest.approx((1 - 0.5 * 0.99) * 1.1 / 0.9 / 8)
    assert tree["rounding"] == bands.ROUNDING.model_dump(mode="json")


def test_bands_that_were_measured_are_in_the_manifest(tmp_path):
    one, other = Numerics(threads=1), Numerics(threads=2)
    pair = bands.pair(bands.name_of(one), bands.name_of(other))
    known = bands.Bands(pairs={pair: bands.Band(limits={"model": bands.ROUNDING}, measured=3)})
    (tmp_path / "bands.json").write_text(known.model_dump_json())
    clock, rules = ManualClock(), Rules(bands=policing.read_bands(tmp_path / "bands.json"), rounds=64)
    published = Manifest(name="tiny", resolved={}, policy=rules.published(KEY, clock.date()))
    police = policing.opened(published, KEY, clock)
    assert police is not None and police.may_compare(one, other)
    (tmp_path / "bands.json").write_text('{"pairs": {"a | b": {"limits": {}}}}')
    with pytest.raises(ConfigError, match="holds no bands .pairs.a . b.measured"):
        policing.read_bands(tmp_path / "bands.json")
    with pytest.raises(ConfigError, match="No such file"):
        policing.read_bands(tmp_path / "nothing.json")


def test_without_a_promise_there_are_no_checks():
    assert policing.opened(Manifest(name="tiny", resolved={}), KEY, ManualClock()) is None


def test_another_key_cannot_keep_the_promise_unless_with_a_beacon_of_its_own():
    clock = ManualClock()
    with pytest.raises(AtollError, match="secret"):
        policing.opened(manifest(clock), OTHER, clock)
    beacon = policing.own_beacon(OTHER, clock.date(), 2.0, 64).model_dump(mode="json")
    police = policing.opened(manifest(clock), OTHER, clock, beacon)
    assert police is not None and police.beacon.settings.anchor == beacon["anchor"]


def test_a_damaged_policy_is_said_in_one_line():
    clock = ManualClock()
    tree = {**manifest(clock).policy, "audit": {"floor": 7}}
    with pytest.raises(CorruptError, match="policy cannot be read"):
        policing.opened(Manifest(name="tiny", resolved={}, policy=tree), KEY, clock)


def test_classes_compare_with_themselves_and_with_those_of_a_band():
    clock = ManualClock()
    police = policing.opened(manifest(clock), KEY, clock)
    assert police is not None
    assert police.may_compare(Numerics(), Numerics()) and not police.may_compare(
        Numerics(), Numerics(threads=2)
    )


def test_a_public_beacon_is_asked_whoever_hosts_the_run(tmp_path):
    """It needs no secret: another coordinator goes on with the same."""
    clock, anchor = ManualClock(), "ab" * 32
    (tmp_path / anchor / "public").mkdir(parents=True)
    about = {"period": 3, "genesis_time": clock.date() - 30, "hash": anchor}
    (tmp_path / anchor / "info").write_text(json.dumps(about))
    tree = Rules(AuditPolicy(), beacon=f"file://{tmp_path}/{anchor}").published(KEY, clock.date())
    published = Manifest(name="tiny", resolved={}, policy=tree)
    signature = b"\x01" * 48
    value = hashlib.sha256(signature).hexdigest()
    rounds = {"round": 12, "randomness": value, "signature": signature.hex()}
    (tmp_path / anchor / "public" / "12").write_text(json.dumps(rounds))
    for key in (KEY, OTHER):
        police = policing.opened(published, key, clock)
        assert police is not None
        number = police.beacon.settings.round_after(clock.date())
        with pytest.raises(AtollError, match="not out"):
            police.beacon.draw(number)
        clock.time += 3
        assert number == 12 and police.beacon.draw(number).value == value
        clock.time -= 3


def test_an_own_chain_lasts_for_years():
    assert policing.period_for(7200.0) * ROUNDS > 3.9 * 365 * 86400
    assert policing.period_for(60.0) * ROUNDS > 0.6 * 365 * 86400
