import contextlib
import shutil

import pytest
import torch

from atoll.data.store import Reader
from atoll.errors import ConfigError, Interrupted, IsolationError, RunError
from atoll.models import checkpoint
from atoll.runs import read_json
from atoll.runs.locks import alone
from atoll.train import hardware, loop, rounds, scaling, student
from atoll.train.ranks import Ranks
from tests.interruptions import stop_when
from tests.train.test_jobs import own_copy, weights

TWO = {"clusters": [[0, 2], [1]], "inner": 4}


def alike(left, right, **tolerance):
    assert left.keys() == right.keys()
    for key in left:
        torch.testing.assert_close(left[key], right[key], **tolerance)


def test_nesterov_by_hand():
    """Two rounds of a weight that each site moves from θ by -1: gradient 1, momentum 1, then 1.9."""
    theta, mean = {"a": torch.tensor([10.0])}, {"a": torch.tensor([9.0])}
    theta, momentum = rounds.outer_step(theta, mean, None, 0.5, 0.9)
    assert theta["a"].item() == pytest.approx(10 - 0.5 * (1 + 0.9 * 1))
    theta, momentum = rounds.outer_step(theta, {"a": theta["a"] - 1}, momentum, 0.5, 0.9)
    assert momentum["a"].item() == pytest.approx(1.9)
    assert theta["a"].item() == pytest.approx(10 - 0.5 * 1.9 - 0.5 * (1 + 0.9 * 1.9))


def test_nesterov_is_torchs():
    torch.manual_seed(0)
    value = torch.nn.Parameter(torch.randn(5))
    peer = torch.optim.SGD([value], lr=0.7, momentum=0.9, nesterov=True)
    theta, momentum = {"a": value.detach().clone()}, None
    for _ in range(4):
        movement = torch.randn(5)
        value.grad = movement
        peer.step()
        theta, momentum = rounds.outer_step(theta, {"a": theta["a"] - movement}, momentum, 0.7, 0.9)
        torch.testing.assert_close(theta["a"], value.detach())


def test_sites_weigh_what_they_have():
    parts = [{"a": torch.tensor([1.0])}, {"a": torch.tensor([5.0])}]
    assert rounds.weighted_mean(parts, [0.75, 0.25])["a"].item() == 2.0


def test_one_site_that_moves_all_the_way_is_central_training(taught):
    """Outer rate 1 and no momentum: rounds of one site are the steps of one training, average and all."""
    one = {"clusters": [[0, 1, 2]], "inner": 4, "outer_lr": 1.0, "momentum": 0.0}
    run = taught(sites=one, compile="off")
    rounds.all_rounds(run)
    found = weights(run.student)
    central = taught(compile="off")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(student, "NAME", "student/site-00")  # the draws of a job depend on its name
        patch.setattr(student, "first_network", start_of(central))
        central.student.clear()
        student.dense(central)
    alike(found, weights(central.student), rtol=1e-3, atol=3e-4)


def start_of(run):
    """The network that the rounds start from, under whatever name the job has."""
    first = student.first_network
    return lambda run, blueprint, init, name="student": first(run, blueprint, init, "student")


def test_rounds_by_hand_are_rounds_at_once(taught):
    run = taught(sites=TWO)
    whole = weights(rounds.all_rounds(run))
    assert run.student.contents.rounds == 3
    assert sorted(path.name for path in (run.student.path / "rounds").iterdir()) == [
        "00001",
        "00002",
        "start",
    ]
    again = taught(sites=TWO)
    shutil.rmtree(run.student.path)
    with pytest.raises(RunError, match="waits for site-00, site-01"):
        rounds.merge(again)
    for _ in range(3):
        for index in (1, 0):  # in any order
            rounds.site(again, index)
        rounds.merge(again)
    assert again.student.done
    found = weights(again.student)
    assert all(torch.equal(whole[key], found[key]) for key in whole)
    assert rounds.site(again, 0).path == again.student.path  # nothing is due


@pytest.mark.parametrize("optimiser", ["merged", "own"])
def test_whose_moments_a_round_begins_with(taught, monkeypatch, optimiser):
    """Site 1 takes up the mean of all moments by their shares, or what it had itself."""
    run = taught(sites={**TWO, "optimiser": optimiser})
    parts = [rounds.site(run, index) for index in (0, 1)]
    rounds.merge(run)
    moments = [checkpoint.read_tensors(part.path / rounds.OPTIMISER) for part in parts]
    expected = rounds.weighted_mean(moments, rounds.shares(run)) if optimiser == "merged" else moments[1]
    assert any(not torch.equal(moments[0][key], moments[1][key]) for key in expected)
    taken: dict[str, torch.Tensor] = {}
    monkeypatch.setattr(loop, "train", lambda task, device: task.start(Taken(taken)))
    with pytest.raises(AttributeError):  # nobody trains
        rounds.site(run, 1)
    alike({key: taken[f"optimiser/{key}"] for key in expected}, expected)


class Taken:
    """A training state that only looks at what it is given."""

    def __init__(self, taken):
        self.taken = taken

    def restore(self, tensors):
        self.taken.update(tensors)


def test_an_site_sees_its_own_clusters_and_experts_only(taught, monkeypatch):
    run = taught(sites=TWO)
    loaded: list[str] = []
    load = checkpoint.load

    def watched(file, *rest):
        loaded.append(file.parent.name)
        return load(file, *rest)

    monkeypatch.setattr(checkpoint, "load", watched)
    own_copy(run, keep=1)  # nothing else is there
    stage = rounds.site(run, 1)
    assert set(loaded) == {"01"}
    assert stage.contents.rows == run.cluster(1).contents.rows


def test_an_site_that_reaches_for_another_fails(taught, monkeypatch):
    run = taught(sites=TWO)
    take = loop.Steps.take

    def curious(steps, batch):
        assert set(batch.cluster.tolist()) <= {0, 2}
        next(Reader([run.cluster(1)], 4, 0).batches())
        return take(steps, batch)

    monkeypatch.setattr(loop.Steps, "take", curious)
    with pytest.raises(IsolationError, match="cluster-01"):
        rounds.site(run, 0)


def test_interrupted_rounds_end_bit_for_bit_alike(taught, monkeypatch):
    run = taught(sites=TWO, save_every=1)
    whole = weights(rounds.all_rounds(run))
    taken = stop_when(monkeypatch, lambda _, count: count in (2, 7, 12))
    run.student.clear()
    with pytest.raises(Interrupted):
        rounds.all_rounds(run)
    for _ in range(2):
        with pytest.raises(Interrupted):
            rounds.all_rounds(run)
    found = weights(rounds.all_rounds(run))
    assert len(taken) == 20  # two sites, ten steps each, none twice
    assert all(torch.equal(whole[key], found[key]) for key in whole)


def test_a_finished_student_of_sites_is_a_no_op(taught):
    run = taught(sites=TWO)
    before = read_json(rounds.all_rounds(run).path / "done.json")
    rounds.all_rounds(run)
    assert read_json(run.student.path / "done.json") == before
    assert before["made_from"]["sites"]["clusters"] == [[0, 2], [1]]


def test_the_batch_is_shared_as_the_data_are(taught):
    run = taught(sites=TWO, batch=20)
    sizes = [rounds.Site(run, index).batch for index in range(2)]
    assert sizes == [round(20 * share) for share in rounds.shares(run)]
    assert sum(rounds.shares(run)) == pytest.approx(1)


def test_every_cluster_is_an_site_unless_said_otherwise(taught):
    assert list(map(list, rounds.groups(taught(sites={})))) == [[0], [1], [2]]


def test_mistakes_are_told(taught):
    with pytest.raises(ConfigError, match="name each cluster 0 to 2 once"):
        taught(sites={"clusters": [[0], [1]]})
    with pytest.raises(ConfigError, match="leave student.teacher at 'label'"):
        taught(sites={}, teacher="ensemble")
    with pytest.raises(ConfigError, match="there is no site 2"):
        rounds.site(taught(sites=TWO), 2)
    with pytest.raises(ConfigError, match=r"no \[student\.sites\]"):
        rounds.merge(taught())


@pytest.mark.thorough
def test_compiling_is_decided_once_for_all_rounds_of_a_site(taught, monkeypatch):
    """A trial in every round would cost time, and might fall differently."""
    tried = []

    def trial(steps, batch):
        tried.append(steps.task.name)
        return False

    monkeypatch.setattr(loop.Steps, "_compiling_helps", trial)
    run = taught(sites=TWO, compile="auto")
    rounds.all_rounds(run)
    assert run.student.contents.rounds == 3
    assert tried == ["student/site-00", "student/site-01"]


@pytest.mark.parametrize(("asked", "compiles"), [("on", True), ("auto", True), ("off", False)])
@pytest.mark.thorough(asked="on")
def test_every_step_of_every_round_is_compiled_where_that_was_decided(taught, monkeypatch, asked, compiles):
    """A round begins with a new network, which nobody has compiled yet."""
    compiled: list[torch.nn.Module] = []
    steps: list[tuple[torch.nn.Module, bool]] = []
    monkeypatch.setattr(hardware, "compile_blocks", compiled.append)
    monkeypatch.setattr(loop.Steps, "_compiling_helps", lambda steps, batch: True)
    take = loop.Steps.take

    def noted(own, batch):
        steps.append((own.model, any(own.model is one for one in compiled)))
        return take(own, batch)

    monkeypatch.setattr(loop.Steps, "take", noted)
    rounds.all_rounds(taught(sites=TWO, compile=asked))
    assert len(steps) == 2 * 10 and {yes for _, yes in steps} == {compiles}
    assert len(compiled) == (2 * 3 if compiles else 0), "once for each round of each site"


def test_only_the_first_rank_of_a_site_holds_its_lock(taught, monkeypatch):
    run = taught(sites=TWO)
    rounds._begin(run)
    site = rounds.Site(run, 0)
    monkeypatch.setattr(rounds, "joined", lambda: contextlib.nullcontext(Ranks(1, 2)))
    monkeypatch.setattr(Ranks, "from_first", lambda *_: True)
    with alone(site.stage(0).path, "trained"):  # as the first rank does
        assert site.round(0).path == site.stage(0).path


def test_rounds_in_float16_carry_their_loss_scale(taught, monkeypatch):
    monkeypatch.setattr(scaling, "INITIAL", 2.0**60)
    run = taught(sites={"clusters": [[0, 1, 2]], "inner": 4}, precision="float16", compile="off")
    scales = []
    monkeypatch.setattr(rounds, "_finish", lambda run: run.student)
    rounds.all_rounds(run)
    for number in (1, 2):
        stage = rounds.folder(run, number, "site-00")
        scales.append(checkpoint.read_tensors(stage.path / rounds.LOSS_SCALE)["scale"].item())
    assert scales == [2.0 ** (60 - 8), 2.0 ** (60 - 10)]
