"""From a recipe to a served run: published once, taken up again, at its end laid out as `atoll run` does."""

import json
import subprocess
import sys

import pytest
from cryptography.exceptions import InvalidSignature

from atoll import config
from atoll.errors import RunError
from atoll.net import filing, host, judging, keys, log, protocol, publishing, statements, units
from atoll.net.host import Choices
from atoll.net.policing import Rules
from atoll.net.tables import Setting
from atoll.net.verification.beacon import BeaconError
from atoll.runs import Run
from tests.net.crowds import Machine
from tests.net.doing import Network

FRIENDS = Choices(quorum=1, every=2, retry=1.0)


@pytest.fixture
def run(prepared):
    """A run of which samples and clusters are there."""
    return prepared()


def manifest_of(hosted):
    return protocol.parse(protocol.Manifest, hosted.manifest.manifest.encode())


def test_a_manifest_says_what_the_run_is_and_is_signed(run):
    with host.opened(run, FRIENDS) as hosted:
        manifest = manifest_of(hosted)
        key = keys.public_key(manifest.coordinator)
        signature = bytes.fromhex(hosted.manifest.signature)
        key.verify(signature, hosted.manifest.manifest.encode())
        with pytest.raises(InvalidSignature):
            key.verify(signature, hosted.manifest.manifest.replace("tiny", "tinz").encode())
        assert manifest.digest == hosted.coordinator.run
        expert = manifest.resolved["expert"]
        assert (expert["precision"], expert["compile"], manifest.precision) == ("float32", "off", "float32")
        assert {file.path for file in manifest.inputs} == set(units.table_of(run))
        with hosted.coordinator.database.reading() as session:
            envelope = session.get_one(log.Entry, 0).envelope
        assert statements.opened(envelope).facts["manifest"] == json.loads(hosted.manifest.manifest)


def test_a_beacon_that_does_not_answer_is_told_before_anything_is_written(run, tmp_path):
    nowhere = Choices(rules=Rules(beacon=f"file://{tmp_path}/nothing/{'0' * 64}"))
    with pytest.raises(BeaconError, match="no beacon answers at"), host.opened(run, nowhere):
        pass
    assert not (run.path / host.FOLDER).exists()


def test_started_again_it_is_the_same_run_and_another_recipe_is_refused(run):
    with host.opened(run, FRIENDS) as hosted:
        first = hosted.manifest
    with host.opened(run, Choices(quorum=1, price=7)) as hosted:
        assert hosted.manifest == first, "what is published stays, whatever else is asked for"
        assert manifest_of(hosted).price == FRIENDS.price
    tree = run.config.model_dump(mode="json")
    tree["expert"]["steps"] = 12
    with (
        pytest.raises(
            RunError, match=r"another recipe was .* \(changed: expert.steps was \d+, is 12\); set it back, or"
        ),
        host.opened(Run(run.path, config.validate(tree, "x")), FRIENDS),
    ):
        pass


def test_a_run_that_an_earlier_version_published_goes_on(run):
    """Its manifest says nothing of settings that came later."""
    with host.opened(run, FRIENDS) as hosted, hosted.coordinator.database.writing() as session:
        row = session.get(Setting, host.MANIFEST)
        tree = json.loads(row.value["text"])
        del tree["resolved"]["sample"]["untold"], tree["resolved"]["credit"]
        row.value = {"text": json.dumps(tree)}
    with host.opened(run, FRIENDS) as hosted:
        assert "untold" not in manifest_of(hosted).resolved["sample"]
        assert not hosted.run.config.sample.untold


def test_its_units_are_those_of_the_graph_and_touch_only_their_own_stage(run):
    with host.opened(run, FRIENDS) as hosted:
        here = hosted.coordinator
        judging.advance(here)
        machine = Machine.of(here)
        offers = [machine.lease() for _ in range(4)]
        names = {offer.unit.name for offer in offers}
        assert names == {"router @ 0..6", *(f"expert {k} @ 0..10" for k in range(3))}
        assert machine.lease().reason == "waiting"
        unit = next(offer.unit for offer in offers if offer.unit.stage == "expert 1")
        assert unit.work > 0 and unit.price > 0 and unit.memory > 0
        for path, may in {
            "experts/01/weights.safetensors": True,
            "experts/01/state/step-00000002.safetensors": True,
            "experts/010/x": False,
            "experts/00/weights.safetensors": False,
            "run.toml": False,
            "resolved.json": False,
            "network/coordinator.key": False,
            "units/expert.json": True,
        }.items():
            assert here.plan.allows(unit, path) == may, path
        audit = unit.model_copy(update={"role": "audit"})
        assert here.plan.allows(audit, "audit/report.json")
        assert not here.plan.allows(audit, "experts/01/weights.safetensors")


@pytest.mark.slow
def test_a_finished_run_is_laid_out_as_if_it_had_been_made_here(run, tmp_path):
    """Units done by machines of other tests, accepted here; the folder is a run that can be sampled."""
    with host.opened(run, FRIENDS) as hosted:
        here = hosted.coordinator
        network = Network(hosted.run.config, tmp_path / "machines", every=2, segment=10)
        with here.database.reading() as session:
            network.table = filing.table_of(session)
        for file in network.table.values():
            network.lay_out([], tmp_path)
            (network.folder / "files" / file.sha256).write_bytes(here.artifacts.read(file.sha256, 1 << 30))
        network.finish()
        for sha256 in {file.sha256 for file in network.table.values()}:
            if here.artifacts.size(sha256) is None:
                here.artifacts.add(network.folder / "files" / sha256, sha256)
        with here.database.writing() as session:
            filing.add_files(session, network.table)
        judging.advance(here)
        assert here.done
        hosted.lay_out()
        hosted.lay_out()
    finished = Run.open(run.path)
    assert finished.samples.done and finished.expert(2).done
    assert not list(run.path.glob("units")), "what only the network needs is not in it"


def test_a_source_of_ones_own_goes_with_it(tmp_path, tiny):
    import numpy as np

    source = tmp_path / "mine.npz"
    np.savez(source, images=np.zeros((40, 28, 28), np.uint8))
    run = Run.create(config.load(tiny, [f"data.source='{source}'"]), tiny)
    with host.opened(run, FRIENDS) as hosted:
        manifest = manifest_of(hosted)
        assert [file.path for file in manifest.inputs] == ["source/mine.npz"]
        assert str(tmp_path) not in hosted.manifest.manifest, "nobody hears where it lies"
        assert publishing.published(run).config.data.source == "source/mine.npz"


PUBLISHED = """
import sys
from pathlib import Path
from atoll import config
from atoll.net import host, pages
from atoll.runs import Run

with Run.begun(config.load(Path(sys.argv[1]), []), Path(sys.argv[1])) as run, host.opened(
    run, host.Choices()
) as hosted:
    hosted.keep().tick()
    hosted.app(*pages.ROUTERS)
    print(len(hosted.coordinator.opened), "torch" in sys.modules)
"""


def test_a_coordinator_needs_no_torch(tiny):
    """Also to look at what it publishes: samples are looked at before anybody has encoded them."""
    command = [sys.executable, "-c", PUBLISHED, str(tiny)]
    answer = subprocess.run(command, capture_output=True, text=True, check=False)
    assert answer.stdout.split() == ["1", "False"], answer.stderr
