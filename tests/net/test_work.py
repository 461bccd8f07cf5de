"""One unit in a process of its own: what it says of itself, how it stops, how it goes on elsewhere."""

import json
import signal
import time

import pytest
from safetensors.torch import load_file, save_file

from atoll.net import units, work
from atoll.net.protocol import Numerics, Unit
from atoll.net.verification import asking
from atoll.net.verification.comparison import Report
from atoll.runs import Run, file_digest, read_json, stamped, write_json
from tests import commands
from tests.holding import held
from tests.net.doing import RUN


def expert(network, k=0, **changes):
    unit = next(unit for unit in network.ready() if unit.stage == f"expert {k}")
    return unit.model_copy(update=changes)


def start(network, unit, place):
    """The unit in a process, in a folder of its own."""
    network.lay_out(unit.inputs, place / "run")
    place.mkdir(exist_ok=True)
    (place / "unit.json").write_text(unit.model_dump_json())
    write_json(place / "resolved.json", stamped(network.config.model_dump(mode="json")))
    arguments = [place / "unit.json", place / "resolved.json", place / "run"]
    return commands.Command(arguments, module="atoll.net.work")


def test_a_process_does_one_unit_and_says_what_it_made(network, tmp_path):
    unit, place = expert(network), tmp_path / "machine"
    process = start(network, unit, place)
    _, err = process.communicate(timeout=900)
    assert process.returncode == 0, err
    made = read_json(place / work.MADE)
    outputs = {file["path"]: file for file in made["outputs"]}
    assert set(outputs) == {
        "experts/00/metrics.jsonl",
        "experts/00/started.json",
        "experts/00/state/decisions.json",
        "experts/00/state/latest.json",
        "experts/00/state/step-00000004.safetensors",
    }
    assert all(file_digest(place / "run" / path) == file["sha256"] for path, file in outputs.items())
    assert made["removed"] == []
    numerics = Numerics.model_validate(made["numerics"])
    assert (numerics.precision, numerics.threads, numerics.compiled) == ("float32", 1, False)
    chain = work.links_of(unit, work.read_chain(place / work.CHAIN))
    assert len(chain) == 3 and chain[-1] == outputs["experts/00/state/step-00000004.safetensors"]["sha256"]
    again = start(network, unit, place)  # it was done: nothing is done twice
    assert again.wait(timeout=900) == 0, again.communicate()
    assert read_json(place / work.MADE) == made


def test_an_audit_takes_the_steps_once_more_and_makes_a_report_alone(network, tmp_path):
    """From step 0 and from step 2, of what is true and of what is not."""
    unit = expert(network, last=4, every=2)
    true = tmp_path / "worker"
    process = start(network, unit, true)
    assert process.wait(timeout=900) == 0, process.communicate()
    state = next((true / "run").rglob("state/step-00000004.safetensors"))
    file = units.described(state, true / "run")
    assert file is not None
    network.keep(true / "run", [file])
    audit = asking.audit_unit(unit, 1, {4: (file,)})  # of step 2 nothing was uploaded: all is replayed
    assert (audit.first, audit.last) == (0, 4)
    process = start(network, audit, tmp_path / "auditor")
    assert process.wait(timeout=900) == 0, process.communicate()
    made = read_json(tmp_path / "auditor" / work.MADE)
    assert [one["path"] for one in made["outputs"]] == [asking.REPORT]
    assert made["removed"] == []
    report = Report.model_validate_json((tmp_path / "auditor" / "run" / asking.REPORT).read_bytes())
    assert report.comparison.equal
    assert report.replayed == file.sha256
    tensors = load_file(state)
    save_file({name: value * 1.01 for name, value in tensors.items()}, state)
    spoilt = units.described(state, true / "run")
    assert spoilt is not None
    network.keep(true / "run", [spoilt])
    process = start(network, asking.audit_unit(unit, 1, {4: (spoilt,)}), tmp_path / "second")
    assert process.wait(timeout=900) == 0, process.communicate()
    report = Report.model_validate_json((tmp_path / "second" / "run" / asking.REPORT).read_bytes())
    assert not report.comparison.equal
    assert not report.comparison.counts
    assert report.committed == spoilt.sha256


def test_stopped_it_has_saved_and_another_machine_goes_on_from_its_state(network, tmp_path):
    long = {"steps": 4000, "log_every": 1}
    network.config = network.config.model_copy(
        update={"expert": network.config.expert.model_copy(update=long)}
    )
    network.run = Run(network.run.path, network.config)
    unit = expert(network, last=60, every=20)
    with held("expert-00", 50):
        first = start(network, unit, tmp_path / "first")
        while 40 not in work.read_chain(tmp_path / "first" / work.CHAIN):
            assert first.poll() is None, first.communicate()
            time.sleep(0.02)
        first.send_signal(signal.SIGTERM)
        _, err = first.communicate(timeout=900)
    assert first.returncode == 75 and "stopped at step" in err
    assert not (tmp_path / "first" / work.MADE).exists()
    links = work.read_chain(tmp_path / "first" / work.CHAIN)
    states = sorted((tmp_path / "first/run/experts/00/state").glob("step-*.safetensors"))
    step = int(states[-1].stem.removeprefix("step-"))
    # On another machine: inputs as published, the newest state of the first one, and its chain.
    network.lay_out(unit.inputs, tmp_path / "second" / "run")
    state = tmp_path / "second/run/experts/00/state" / states[-1].name
    state.parent.mkdir(parents=True)
    state.write_bytes(states[-1].read_bytes())
    known = {key: link for key, link in links.items() if key <= step}
    write_json(tmp_path / "second" / work.CHAIN, {str(key): link for key, link in known.items()})
    second, alone = start(network, unit, tmp_path / "second"), start(network, unit, tmp_path / "alone")
    for process in (second, alone):
        _, err = process.communicate(timeout=900)
        assert process.returncode == 0, err
    chains = [
        work.links_of(unit, work.read_chain(tmp_path / name / work.CHAIN)) for name in ("second", "alone")
    ]
    assert chains[0] == chains[1] and len(chains[0]) == 4
    states = [
        tmp_path / name / "run/experts/00/state/step-00000060.safetensors" for name in ("second", "alone")
    ]
    assert states[0].read_bytes() == states[1].read_bytes()


def test_a_chain_ends_at_its_first_gap():
    unit = Unit(run=RUN, name="x", stage="expert 0", role="train", first=4, last=9, every=2)
    links = {4: "a", 6: "b", 8: "c", 9: "d"}
    assert work.links_of(unit, links) == ("a", "b", "c", "d")
    assert work.links_of(unit, {4: "a", 8: "c"}) == ("a",)
    assert work.links_of(unit, {}) == ()


def test_a_mistake_is_one_line(network, tmp_path):
    unit = expert(network, inputs=())  # its cluster did not come with it
    process = start(network, unit, tmp_path / "machine")
    _, err = process.communicate(timeout=900)
    assert process.returncode == 1
    assert err.startswith("atoll: ") and err.count("\n") == 1
    assert json.loads((tmp_path / "machine" / "unit.json").read_text())["inputs"] == []


@pytest.mark.thorough
def test_two_machines_make_the_same_of_whatever_is_not_trained(recorded, tmp_path):
    """So that two accounts can agree on it: byte for byte but for what tells of time."""
    others = [unit for unit in recorded.asked if unit.role != "train"]
    assert {unit.stage for unit in others} == {"data", "partition", "samples"}
    for number, unit in enumerate(others):
        folder = tmp_path / str(number) / "run"
        recorded.network.lay_out(unit.inputs, folder)
        run = Run(folder, recorded.network.config)
        work.work(unit, run, folder.parent / work.CHAIN)
        outputs, removed = work.made_files(unit, run)
        earlier = recorded.units[unit.name]
        first, again = ({file.path: file.sha256 for file in files} for files in (earlier[0], outputs))
        assert again == first and removed == earlier[1], unit.name
