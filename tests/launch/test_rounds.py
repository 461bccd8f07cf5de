"""Sites that have a store in common and nothing else."""

from atoll import config
from atoll.launch import leased, rounds
from atoll.runs import Run, graph
from atoll.storage.mirror import Mirror
from atoll.train import rounds as alone

SETTINGS = [
    "student.steps=6",
    "student.batch=8",
    "student.save_every=3",
    "student.precision=float32",
    "student.compile=off",
    "student.sites={inner=3, clusters=[[0], [1, 2]]}",
]


def machine(folder, finished, store, name):
    """A machine that has nothing of the run yet."""
    tree = finished.config.model_dump(mode="json")
    tree["launch"]["store"], tree["name"] = str(store), "tiny"
    changes = config.assignments(SETTINGS)
    run = Run(folder / name / "tiny", config.validate(config.merged(tree, changes), "a test"))
    run.path.mkdir(parents=True)
    return run


def filled(folder, finished):
    """A store with all that a student is made from, and the machine that it came from."""
    store = folder / "store"
    store.mkdir()
    origin = machine(folder, finished, store, "origin")
    for stage in ("data", "partition", "experts", "router"):
        (origin.path / stage).symlink_to((finished.path / stage).resolve())
    leased.look(origin)  # what is there comes into the store
    return store, origin


def test_sites_and_a_merger_share_only_a_store(finished, tmp_path):
    store, origin = filled(tmp_path, finished)
    sites = [machine(tmp_path, finished, store, f"site-{index}") for index in range(2)]
    merger = machine(tmp_path, finished, store, "merger")
    for _ in range(2):
        for index, run in enumerate(sites):
            rounds.site(run, index)
        rounds.merge(merger)
    assert Mirror.of(merger).is_done(merger.student)
    seen = {path.parent.name for path in (sites[0].path / "partition").rglob("*.parquet")}
    assert seen == {"cluster-00"}, "a site has its own samples alone"
    assert not (sites[0].path / "experts" / "01").exists()
    here = Run(origin.path, origin.config)
    alone.all_rounds(here)
    assert merger.student.record.files == here.student.record.files, "as on one machine, bit for bit"


def test_all_rounds_on_one_machine_with_a_store(finished, tmp_path):
    store, _ = filled(tmp_path, finished)
    other = machine(tmp_path, finished, store, "other")
    leased.work(graph.node(other, "student"))
    assert Mirror.of(other).is_done(other.student)
    assert other.student.contents.rounds == 2
