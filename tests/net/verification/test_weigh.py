"""A real segment on the scales: its numbers, and what it did to samples of its own and of other clusters."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file

from atoll.net.protocol import File
from atoll.net.verification import updates, weigh
from atoll.net.verification.asking import AFTER, state_name
from atoll.runs import Run, stamped, write_json
from tests.net.doing import Network

VALUE = bytes(range(32))


class Weighed:
    """The second segment of expert 1, with all that the scales need; `change` spoils what was handed in."""

    def __init__(self, network: Network, folder):
        self.network, self.folder = network, folder
        network.do(next(unit for unit in network.ready() if unit.stage == "expert 1"))
        self.unit = next(unit for unit in network.ready() if unit.stage == "expert 1")
        network.do(self.unit)
        samples = [file for path, file in network.table.items() if path.startswith("partition/cluster-")]
        network.lay_out((*self.unit.inputs, *samples), folder)
        end = network.table[f"experts/01/state/{state_name(self.unit.last)}"]
        network.lay_out([File(path=AFTER, sha256=end.sha256, size=end.size)], folder)
        before = folder / "experts" / "01" / "state" / state_name(self.unit.first)
        self.states = load_file(before), load_file(folder / AFTER)

    def __call__(self, change=lambda old, new: new, value=VALUE):
        save_file(change(*self.states), self.folder / AFTER)
        try:
            return weigh.weighed(self.unit, Run(self.folder, self.network.config), value)
        finally:
            save_file(self.states[1], self.folder / AFTER)


@pytest.fixture
def weighed(network, tmp_path):
    return Weighed(network, tmp_path / "scales")


def backwards(old, new):
    """As far as it went, but the wrong way."""
    return {
        name: 2 * old[name] - value if updates.kind_of(name) in ("model", "ema") else value
        for name, value in new.items()
    }


def test_an_honest_segment_is_not_odd_and_its_numbers_are_those_of_its_update(weighed):
    said = weighed()
    old, new = weighed.states
    training = weighed.network.config.expert
    moved = torch.cat([(new[name] - old[name]).flatten() for name in new if name.startswith("model/")])
    rates = training.lr * (weighed.unit.last - weighed.unit.first)
    assert said["norm"] == pytest.approx(float(moved.double().norm()) / rates, rel=1e-5)
    assert said["finite"] and said["changed"] > 0.5
    assert said["gate"]["own"] == 1 and said["gate"]["doubts"] == {}
    assert set(said["gate"]["changes"]) == {"0", "1", "2"} and not said["gate"]["unseen"]
    assert said["gate"]["changes"]["1"]["better"] > 0 and said["gate"]["changes"]["1"]["rows"] == weigh.ROWS
    assert weighed() == said, "whoever weighs it again comes to the same"
    assert weighed(value=bytes(32))["gate"]["changes"] != said["gate"]["changes"], "nobody knows before"
    json.dumps(said, allow_nan=False)


def test_a_segment_that_makes_its_cluster_worse_is_odd(weighed):
    assert "worse" in weighed(backwards)["gate"]["doubts"]


def test_numbers_that_are_none_are_told_and_not_asked_further(weighed):
    def broken(old, new):
        name = next(name for name in new if name.startswith("ema/"))
        return {**new, name: new[name] * torch.nan}

    said = weighed(broken)
    assert said["finite"] is False and "gate" not in said
    assert weighed(lambda old, new: {**new, **old})["changed"] == 0


def test_it_is_a_program(weighed, tmp_path, capsys):
    (tmp_path / "unit.json").write_text(weighed.unit.model_dump_json())
    write_json(tmp_path / "resolved.json", stamped(weighed.network.config.model_dump(mode="json")))
    arguments = [
        str(tmp_path / "unit.json"),
        str(tmp_path / "resolved.json"),
        str(weighed.folder),
        VALUE.hex(),
    ]
    assert weigh.main([*arguments, str(tmp_path / "answer.json")]) == 0
    assert json.loads((tmp_path / "answer.json").read_bytes())["gate"] == weighed()["gate"]
    (weighed.folder / AFTER).write_bytes(b"no state")
    assert weigh.main([*arguments, str(tmp_path / "other.json")]) == 1 and capsys.readouterr().err
    assert not (tmp_path / "other.json").exists() and weigh.main([]) == 1
