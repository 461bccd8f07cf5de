"""A worker's disk: a key that is shown once, files by hash, leases that outlive the process."""

import os
import stat
from typing import Any

import pytest

from atoll.errors import ConfigError
from atoll.net import keys
from atoll.net.client import Rate
from atoll.net.home import Home, is_whole
from atoll.net.protocol import LeaseOffer, Micro, Unit
from atoll.net.units import described


def offer(*inputs, resume=None, **changes):
    unit: dict[str, Any] = {
        "run": "a" * 64,
        "name": "expert 0 @ 4..8",
        "stage": "expert 0",
        "role": "train",
        "inputs": inputs,
    }
    unit |= {"first": 4, "last": 8, "every": 2, **changes}
    times = {"heartbeat_s": 60, "soft_deadline": 1, "hard_deadline": 2, "now": 0}
    return LeaseOffer(lease="l1", unit=Unit(**unit), fence=1, resume=resume, **times)


@pytest.fixture
def home(tmp_path):
    return Home(tmp_path / "home")


def file(home, name, data):
    path = home.folder / "new"
    path.unlink(missing_ok=True)  # else it would be the last one, which has a second name by now
    path.write_bytes(data)
    made = described(path, home.folder).model_copy(update={"path": name})
    home.keep(path, made)
    return made


def test_a_key_is_made_once_and_only_its_owner_reads_it(home):
    first = keys.public_hex(home.key())
    assert keys.public_hex(Home(home.folder).key()) == first
    assert stat.S_IMODE((home.keys / "device.key").stat().st_mode) == 0o600
    assert stat.S_IMODE(home.keys.stat().st_mode) == 0o700


def test_the_phrase_is_shown_once_and_restores_the_account(home, tmp_path):
    delegation, phrase = home.delegation(1e9)
    keys.check_delegation(delegation, 1e9 + 5)
    assert len(phrase.split()) == 24
    assert home.delegation(1e9 + 9) == (delegation, "")
    assert not any(phrase in path.read_text() for path in home.keys.iterdir())
    other, shown = Home(tmp_path / "other").delegation(1e9, phrase)
    assert (other.account, shown) == (delegation.account, "") and other.device != delegation.device
    with pytest.raises(ConfigError, match="no recovery phrase"):
        home.delegation(1e9, "twenty four words")


def test_a_machine_acts_for_a_year_and_the_phrase_renews_it(home):
    first, phrase = home.delegation(1e9)
    assert home.delegation(1e9 + keys.YEAR - 1)[0] == first
    with pytest.raises(ConfigError, match=r"may no longer act.*--recover"):
        home.delegation(1e9 + keys.YEAR + 1)
    renewed, shown = home.delegation(1e9 + keys.YEAR + 1, phrase)
    assert (renewed.account, renewed.device, shown) == (first.account, first.device, "")
    assert renewed.expires == first.expires + keys.YEAR + 1
    assert home.delegation(1e9 + keys.YEAR + 2) == (renewed, "")


def test_a_machine_that_takes_another_account_gets_another_key(home, tmp_path):
    """Coordinators know for whom a device acts, and would refuse it for anybody else."""
    own, _ = home.delegation(1e9)
    other, phrase = Home(tmp_path / "other").delegation(1e9)
    taken, _ = home.delegation(1e9, phrase)
    assert taken.account == other.account and taken.device not in (own.device, other.device)
    assert taken.device == keys.public_hex(home.key())
    before = keys.read_or_make(home.keys / f"device-{own.device[:16]}.key")
    assert keys.public_hex(before) == own.device, "the old one is not thrown away"


def test_a_lease_is_laid_out_and_is_there_after_a_restart(home):
    state = file(home, "experts/00/state/step-00000004.safetensors", b"state")
    lines = file(home, "experts/00/metrics.jsonl", b'{"step": 4}\n')
    source = file(home, "source/set.npz", b"rows")
    held = home.hold(offer(state, lines, source), {"name": "x"})
    held.lay_out(home)
    assert is_whole(held.run / state.path, state) and is_whole(held.run / lines.path, lines)
    assert (held.run / source.path).stat().st_mtime == 0
    (held.run / lines.path).write_text("more")
    assert is_whole(home.place(lines.sha256), lines), "what a job appends to is not the file of others"
    (again,) = Home(home.folder).leases()
    again.lay_out(home)
    assert (again.run / lines.path).read_text() == "more", "what a job has made stays"
    assert again.offer == held.offer and not again.done
    again.drop()
    assert list(home.leases()) == []


def test_another_machines_state_and_chain_are_gone_on_from(home):
    first = file(home, "experts/00/state/step-00000004.safetensors", b"first")
    newer = file(home, "experts/00/state/step-00000006.safetensors", b"newer")
    micro = Micro(step=6, files=(newer,), chain=("aa", "bb"))
    held = home.hold(offer(first, resume=micro), {})
    held.lay_out(home)
    assert is_whole(held.run / newer.path, newer)
    assert held.chain.read_text().split() == ["{", '"4":', '"aa",', '"6":', '"bb"', "}"]


def test_half_a_lease_is_none(home):
    held = home.hold(offer(), {})
    (held.folder / "offer.json").write_text('{"lease": ')
    (home.folder / "leases" / "empty").mkdir()
    assert list(home.leases()) == []


def test_what_was_not_needed_for_the_longest_time_goes_first(home):
    files = [file(home, f"f{k}", bytes(100) + bytes([k])) for k in range(4)]
    for age, one in zip((3, 1, 2, 4), files, strict=True):
        os.utime(home.place(one.sha256), (1e9 - age, 1e9 - age))
    home.forget(250, needed=[files[3]])
    assert [home.place(one.sha256).is_file() for one in files] == [False, True, False, True]


def test_how_fast_the_line_was_is_known_after_a_restart(home):
    assert [rate.mbit for rate in home.rates()] == [0, 0]
    home.keep_rates(Rate(20.0), Rate(100.0))
    assert [rate.mbit for rate in Home(home.folder).rates()] == [20, 100]
    (home.folder / "rates.json").write_text("{")
    assert [rate.mbit for rate in home.rates()] == [0, 0]
