"""Parts of a run in a store: what one machine adds or drops, others see, and two do not undo each other."""

import pytest

from atoll import config
from atoll.errors import CorruptError, StorageError
from atoll.runs import Run, Stage
from atoll.runs.components import (
    FOLDER,
    SIGNATURE,
    ComponentContents,
    Member,
    Members,
    write_members,
)
from atoll.runs.records import SamplesContents
from atoll.storage import parts
from atoll.storage.mirror import Mirror


@pytest.fixture
def machines(tiny, tmp_path):
    """Two machines with one store."""
    (tmp_path / "store").mkdir()

    def machine(name):
        run = Run(tmp_path / name, config.load(tiny))
        run.path.mkdir()
        return Mirror(run, str(tmp_path / "store"), 30)

    return machine("one"), machine("two")


def added(mirror, number=3, words=b"weights"):
    """A component put into a run by hand, as far as stores are concerned."""
    stage = mirror.run.component(number)
    stage.path.mkdir(parents=True)
    (stage.path / "weights.safetensors").write_bytes(words)
    (stage.path / SIGNATURE).write_text("{}")
    samples = SamplesContents(
        kind="image", shape=(1, 4, 4), dtype="uint8", mean=(0.0,), std=(1.0,), group=16, rows=16
    )
    contents = ComponentContents(steps=1, rows=16, name="squares", samples=samples, prototypes=1)
    stage.finish({}, ["weights.safetensors"], contents)
    (mirror.run.path / FOLDER / "known-00-abc.safetensors").write_bytes(b"rows")
    members = mirror.run.members
    member = Member(number=number, name="squares", digest=stage.digest)
    write_members(mirror.run.path, members.model_copy(update={"added": (*members.added, member)}))
    return member


def test_what_one_machine_adds_and_drops_another_one_has(machines):
    here, there = machines
    assert parts.download(here) == parts.download(there) == 0
    member = added(here)
    parts.upload(here, 0)
    assert parts.download(there) == 1
    assert there.run.members == here.run.members
    copy, own = there.run.component(3), here.run.component(3)
    assert copy.digest == own.digest == member.digest
    assert {path.name: path.read_bytes() for path in copy.path.iterdir()} == {
        path.name: path.read_bytes() for path in own.path.iterdir()
    }
    assert (there.run.path / FOLDER / "known-00-abc.safetensors").read_bytes() == b"rows"
    write_members(there.run.path, there.run.members.model_copy(update={"dropped": (3,)}))
    parts.upload(there, 1)
    assert not [name for name in here.store.names(FOLDER) if member.digest[:16] in name], "nothing stays"
    assert parts.download(here) == 2
    assert not here.run.component(3).path.exists()
    assert here.run.members.present == ()


def test_of_two_changes_at_once_one_is_refused_and_undone(machines):
    here, there = machines
    versions = [parts.download(mirror) for mirror in machines]
    added(here)
    parts.upload(here, versions[0])
    added(there, words=b"others")
    with pytest.raises(StorageError, match="another machine meanwhile; give the same command again"):
        parts.upload(there, versions[1])
    assert parts.download(there) == 1
    assert there.run.members == here.run.members
    assert (there.run.component(3).path / "weights.safetensors").read_bytes() == b"weights"


def test_an_upload_that_never_came_to_its_end_is_undone(machines):
    here, _ = machines
    added(here)
    assert parts.download(here) == 0
    assert here.run.members == Members()


def test_another_component_than_was_added_is_refused(machines):
    here, there = machines
    member = added(here)
    parts.upload(here, 0)
    place = f"{FOLDER}/{member.digest[:16]}"
    record = Stage(here.run.component(3).path, ComponentContents)
    (record.path / "weights.safetensors").write_bytes(b"evil")
    record.finish({}, ["weights.safetensors"], record.contents)
    here.store.write(f"{place}/done.json", (record.path / "done.json").read_bytes())
    with pytest.raises(CorruptError, match="another component"):
        parts.download(there)
    assert there.run.members == Members()
