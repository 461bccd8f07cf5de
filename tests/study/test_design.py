"""What a study unfolds into: the right cells, each within its budget, and what they share."""

from pathlib import Path

import pytest

from atoll import plan
from atoll.config import Facts
from atoll.errors import ConfigError
from atoll.evaluate import unlearnt
from atoll.study import design

STUDIES = sorted((Path(__file__).parents[2] / "recipes" / "studies").glob("*.toml"))
DATA = Facts(shape=(1, 28, 28), rows=5000)

STUDY = """
name = "small"
recipe = "tiny.toml"
[set]
evaluate.num = 32
[budget]
samples = [2000, 4000]
router = 0.1
[axes]
partition.clusters = [2, 4]
sample.strategy = ["ancestral", "top-1"]
seed = [0, 1, 2]
"""


@pytest.fixture
def study(tiny):
    path = tiny.with_name("study.toml")
    path.write_text(STUDY)
    return path


def cells(path, *overrides):
    return design.unfold(design.load(path, overrides), DATA)


def flops(config):
    """Spent on the whole of a run, by the plan that is tested elsewhere."""
    return plan.plan(config, DATA)["total"]["flops"]


def test_every_combination_is_a_cell_and_the_monolith_is_always_there(study):
    found = cells(study)
    ensembles = [cell for cell in found if not cell.monolith]
    monoliths = [cell for cell in found if cell.monolith]
    assert len(ensembles) == 2 * 2 * 2 * 3
    assert len(monoliths) == 2 * 3  # a budget and a seed each: clusters and strategies say nothing of it
    for cell in ensembles:
        beside = [other for other in monoliths if other.beside == cell.beside]
        assert len(beside) == 1
        assert beside[0].config.seed == cell.config.seed
        assert beside[0].values["budget"] == cell.values["budget"]


def test_every_cell_spends_its_budget_with_the_router_counted(study):
    for cell in cells(study):
        forward = plan.plan(cell.config, DATA)["jobs"]["expert 0"]["forward_flops_per_sample"]
        allowed = 3 * forward * cell.values["budget"]
        assert cell.flops == pytest.approx(flops(cell.config), rel=1e-9)
        step = 3 * forward * cell.config.partition.clusters * cell.config.expert.batch
        assert allowed - step <= cell.flops <= allowed


def test_the_router_has_its_share(study):
    for share in (0.05, 0.4):
        for cell in cells(study, f"budget.router={share}"):
            if not cell.monolith:
                jobs = plan.plan(cell.config, DATA)["jobs"]
                one_step = jobs["router"]["flops"] / cell.config.router.steps
                assert jobs["router"]["flops"] == pytest.approx(share * cell.flops, abs=2 * one_step)


def test_cells_that_differ_in_sampling_share_their_training(study):
    found = [cell for cell in cells(study) if not cell.monolith]
    assert len({cell.training for cell in found}) == len(found) / 2
    assert len({cell.id for cell in found}) == len(found)


def test_how_training_is_done_does_not_make_it_another_training(study):
    plain = {cell.training for cell in cells(study)}
    assert plain == {cell.training for cell in cells(study, "expert.save_every=7", "launch.at_once=1")}
    assert plain.isdisjoint(cell.training for cell in cells(study, "expert.lr=0.5"))


def test_a_monolith_does_not_depend_on_the_router(study):
    def monoliths(*overrides):
        return {cell.training for cell in cells(study, *overrides) if cell.monolith}

    assert monoliths() == monoliths("router.width=32", "partition.fine=9")


def test_samples_are_drawn_with_the_seed_of_the_run(study):
    assert all(cell.config.sample.seed == cell.config.seed for cell in cells(study))


def test_overrides_reach_the_study_and_its_recipes(study):
    found = cells(study, "axes.seed=[5]", "budget.samples=[3000]", "expert.batch=4")
    assert {cell.config.seed for cell in found} == {5}
    assert {cell.values["budget"] for cell in found} == {3000}
    assert {cell.config.expert.batch for cell in found} == {4}


def test_the_monolith_may_have_a_batch_of_its_own(study):
    found = cells(study, "monolith.expert.batch=32")
    assert {cell.config.expert.batch for cell in found if cell.monolith} == {32}
    assert {cell.config.expert.batch for cell in found if not cell.monolith} == {8}


def test_an_axis_of_one_cluster_is_the_monolith_itself(study):
    found = cells(study, "axes.partition.clusters=[1]")
    assert all(cell.monolith for cell in found)
    assert len(found) == 2 * 3


def test_a_network_for_all_low_noise_is_paid_from_the_budget(study):
    more = ["budget.shared=0.25", "shared.below=0.4", "shared.batch=8", "axes.seed=[0]"]
    found = cells(study, *more, "budget.samples=[4000]")
    plain = cells(study, "axes.seed=[0]", "budget.samples=[4000]")
    for cell, before in zip(found, plain, strict=True):
        if cell.monolith:
            assert (cell.training, cell.config.shared) == (before.training, None)
            continue
        assert (cell.config.shared.steps, cell.config.shared.below) == (125, 0.4)
        assert cell.config.expert.time_span == (0.4, 1.0)
        assert cell.flops == pytest.approx(flops(cell.config))
        assert cell.flops == pytest.approx(before.flops, rel=0.03)
        assert cell.training != before.training
    with pytest.raises(ConfigError, match=r"\[shared\] needs a share of the budget"):
        design.load(study, ["shared.below=0.4"])


def test_choosing_a_guidance_is_paid_from_the_budget(study):
    more = ["budget.start=[0.5]", "sample.against=start", "axes.seed=[0]", "budget.samples=[80_000]"]
    found, plain = cells(study, *more, "sample.guidances=[1.0, 2.0]"), cells(study, *more)
    for cell, before in zip(found, plain, strict=True):
        if cell.monolith:
            assert cell.id == before.id
            continue
        forward, _ = plan.forward_flops(cell.config, DATA)
        # 128 samples in 8 steps, with one pass and with two, each a third of what training on a sample takes.
        assert cell.flops == pytest.approx(before.flops, rel=0.03)
        trained = flops(cell.config) + flops(cell.start.config)
        seen = (1000 + 2 * 128) * unlearnt.flops(DATA.shape)
        assert cell.flops == pytest.approx(trained + forward * 128 * 8 * 3 + seen)


def test_measuring_where_samples_enter_is_paid_from_the_budget_on_both_sides(study):
    more = ["budget.start=[0.5]", "axes.seed=[0]", "budget.samples=[80_000]"]
    found, plain = cells(study, *more, "expert.entry=true"), cells(study, *more)
    for cell, before in zip(found, plain, strict=True):
        forward, _ = plan.forward_flops(cell.config, DATA)
        clusters = cell.config.partition.clusters
        # 32 samples at 5 times; moments of at most 1,000: five products with 72 directions, two small ones.
        rows = min(1000, DATA.rows // clusters)
        moments = 2 * (5 * rows * 784 * 72 + rows * 72**2 + 784 * 72 * 64)
        trained = flops(cell.config) + (0 if cell.start is None else flops(cell.start.config))
        assert cell.flops == pytest.approx(trained + clusters * (forward * 32 * 5 + moments))
        assert cell.flops == pytest.approx(before.flops, rel=0.03)
        if cell.start is not None:
            assert cell.start.training == before.start.training, "nothing is measured of a start"


def test_a_common_start_is_paid_from_the_budget(study):
    more = ["budget.start=[0.5]", "start.expert.batch=16", "axes.seed=[0]", "budget.samples=[4000]"]
    found = [cell for cell in cells(study, *more) if not cell.monolith]
    plain = [cell for cell in cells(study, *more[2:]) if not cell.monolith]
    for cell, before in zip(found, plain, strict=True):
        config, start = cell.config, cell.start
        assert (start.config.partition.clusters, start.config.expert.batch) == (1, 16)
        assert start.config.expert.steps == 125
        assert cell.flops == pytest.approx(flops(config) + flops(start.config))
        assert cell.flops == pytest.approx(before.flops, rel=0.03)
        assert config.expert.init == start.training
        assert cell.training != before.training
    assert {cell.training for cell in cells(study, *more) if cell.monolith} == {
        cell.training for cell in cells(study, *more[2:]) if cell.monolith
    }


def test_a_start_that_is_told_clusters_costs_the_same_and_has_those_of_its_experts(study):
    more = ["budget.start=[0.5]", "start.expert.batch=16", "axes.seed=[0]", "budget.samples=[4000]"]
    plain, told = cells(study, *more), cells(study, *more, "start.condition=cluster")
    assert [cell.flops for cell in plain] == [cell.flops for cell in told]
    starts: dict[int, set[str]] = {}
    for before, cell in zip(plain, told, strict=True):
        if cell.monolith:
            assert cell.training == before.training
            continue
        start = cell.start.config
        assert start.partition == cell.config.partition
        assert (start.start.condition, start.start.batch, start.start.steps) == ("cluster", 16, 125)
        assert start.start.decay == "none"
        assert cell.start.training != before.start.training
        assert cell.config.expert.init == cell.start.training
        starts.setdefault(cell.config.partition.clusters, set()).add(cell.start.training)
    assert {clusters: len(names) for clusters, names in starts.items()} == {2: 1, 4: 1}
    assert starts[2] != starts[4], "it was told other clusters"


@pytest.mark.parametrize(("said", "decay"), [((), "none"), (("start.expert.decay=cosine",), "cosine")])
def test_the_rate_of_a_start_falls_only_if_the_study_says_so(study, said, decay):
    found = cells(study, "budget.start=[0.5]", "axes.seed=[0]", "expert.decay=cosine", *said)
    for cell in found:
        assert cell.config.expert.decay == "cosine"
        assert cell.start is None or cell.start.config.expert.decay == decay


def test_a_study_takes_neither_a_recipes_start_nor_guidance_by_it(study, tiny):
    guided = tiny.read_text().replace(
        "[sample]", '[sample]\nagainst = "start"\nuntold = true\nguidance = 3.0'
    )
    tiny.write_text(guided + "[start]\nsteps = 4\n")
    for cell in cells(study, "axes.seed=[0]"):
        settings = cell.config.sample
        assert (cell.start, cell.config.start, settings.against, settings.guidance) == (
            None,
            None,
            "nothing",
            1,
        )
    asked = cells(study, "axes.seed=[0]", "budget.start=[0.5]", "sample.against=start", "sample.guidance=2.0")
    assert {cell.config.sample.guidance for cell in asked if not cell.monolith} == {2.0}


@pytest.mark.parametrize("said", ["sample.against=start", "axes.sample.against=['nothing', 'start']"])
def test_guidance_away_from_a_start_needs_one(study, said):
    with pytest.raises(ConfigError, match="needs one: give budget.start a share"):
        design.load(study, [said])
    design.load(study, [said, "budget.start=[0.5]"])


def test_adapters_are_of_the_start_that_full_experts_go_on_from(study):
    more = ["budget.start=[0.5]", "budget.adapter=[0, 2]", "adapter.expert.lr=0.5", "axes.seed=[0]"]
    more += ["adapter.expert.adapter.targets='attention+mlp+modulation'"]
    found = [cell for cell in cells(study, *more, "budget.samples=[4000]") if not cell.monolith]
    full = [cell for cell in found if cell.values["adapter"] == 0]
    small = [cell for cell in found if cell.values["adapter"] == 2]
    assert full
    assert {cell.start.training for cell in full} == {cell.start.training for cell in small}
    for cell in small:
        adapter = cell.config.expert.adapter
        assert (adapter.rank, adapter.base) == (2, cell.start.training)
        assert adapter.targets == "attention+mlp+modulation"
        assert (cell.config.expert.init, cell.config.expert.lr) == (None, 0.5)
    assert all(cell.config.expert.adapter is None for cell in full)
    assert not {cell.training for cell in full} & {cell.training for cell in small}
    for one, cell in zip(full, small, strict=True):  # no gradients of the base: more steps for as many FLOPs
        assert cell.flops == pytest.approx(flops(cell.config) + flops(cell.start.config))
        assert cell.flops == pytest.approx(one.flops, rel=0.03)
        assert cell.config.expert.steps > one.config.expert.steps


def test_shares_of_a_start_are_an_axis(study):
    found = [cell for cell in cells(study, "budget.start=[0.0, 0.25]", "axes.seed=[0]") if not cell.monolith]
    assert {cell.values["start"] for cell in found} == {0.0, 0.25}
    assert all((cell.start is None) == (cell.values["start"] == 0) for cell in found)
    assert len({cell.start.training for cell in found if cell.start}) == 2, (
        "one for each budget, whatever K is"
    )


def test_without_a_condition_guidance_makes_no_other_cell(study):
    plain = cells(study)
    study.write_text(STUDY.replace("seed = [0, 1, 2]", "seed = [0, 1, 2]\nsample.guidance = [1.0, 2.0]"))
    assert {cell.id for cell in cells(study)} == {cell.id for cell in plain}
    assert len(cells(study, "condition.kind=class")) == 2 * len(plain)


def test_a_mix_of_objectives_is_an_axis(study):
    study.write_text(
        STUDY.replace(
            "seed = [0, 1, 2]",
            'expert.override = [[], [{clusters = [0], path = "cosine", prediction = "noise"}]]',
        )
    )
    found = [cell for cell in cells(study) if not cell.monolith]
    assert {len(cell.config.expert.override) for cell in found} == {0, 1}
    assert all(not cell.config.expert.override for cell in cells(study) if cell.monolith)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (STUDY.replace("samples", "smaples"), r"did you mean 'budget\.samples'"),
        (STUDY.replace("[axes]", "[axis]"), "unknown key 'axis', did you mean 'axes'"),
        (STUDY.replace("[2000, 4000]", "2000"), r"'budget\.samples' = 2000: give a list, such as \[2000\]"),
        (STUDY.replace("tiny.toml", "gone.toml"), "no such recipe"),
        (STUDY.replace("seed = [0, 1, 2]", "seed = 3"), r"axes\.seed must be a list"),
        (STUDY.replace("evaluate.num", "evaluate.nmu"), "did you mean 'evaluate.num'"),
        (STUDY.replace("[2000, 4000]", "[10]"), "leaves no step"),
        (STUDY.replace("router = 0.1", "start = [1.0]"), "numbers from 0 to below"),
        (STUDY.replace("router = 0.1", "adapter = [2]"), "needs a start"),
        ("name = ", "not TOML"),
    ],
)
def test_a_mistake_is_told_in_one_line(study, text, said):
    study.write_text(text)
    with pytest.raises(ConfigError, match=said) as caught:
        cells(study)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("axis", "said"),
    [
        ("partition.clusers = [2]", "did you mean 'partition.clusters'"),
        ('sample.solver = ["euler", "oiler"]', "'sample.solver' = 'oiler'"),
    ],
)
def test_a_mistake_in_an_axis_is_told_before_any_data_is_read(study, axis, said):
    study.write_text(STUDY.replace("seed = [0, 1, 2]", axis))
    with pytest.raises(ConfigError, match=said):
        design.load(study)


@pytest.mark.parametrize("path", STUDIES, ids=lambda path: path.stem)
def test_every_shipped_study_unfolds(path):
    found = cells(path)
    assert design.load(path).config.name == path.stem
    assert any(cell.monolith for cell in found)
    assert path.read_text(encoding="utf-8").splitlines()[1].startswith("# "), "after its schema"


def test_shipped_studies_share_what_they_can():
    """The strategies, partitions and budgets stand on trainings of the headline and of the budgets."""
    found = {path.stem: {cell.training for cell in cells(path)} for path in STUDIES}
    for other in ("strategies", "partitions", "budget", "batch", "experts", "routing"):
        assert (found["headline"] | found["budget"]) & found[other], other
    ids = {path.stem: {cell.id for cell in cells(path)} for path in STUDIES}
    assert ids["headline"] & ids["partitions"]
    assert ids["headline"] & ids["budget"]


def test_repetitions_are_one_group_and_what_is_compared_is_beside(study):
    every = cells(study)
    groups = {cell.group for cell in every}
    assert len(groups) == 2 * (2 * 2 + 1)
    for cell in every:
        assert dict(cell.beside).keys() == {"budget", "seed"}


def test_routing_is_looked_at_by_training_and_makes_no_other_cell(study):
    few = ["axes.seed=[0]", "budget.samples=[2000]"]
    plain, looked, more = (
        {cell.id for cell in cells(study, *few, *other)}
        for other in ((), ("evaluate.routing=99",), ("evaluate.num=33",))
    )
    assert plain == looked
    assert plain.isdisjoint(more)


def test_a_batch_of_the_monolith_is_divided_and_named_as_if_it_had_been_said(study):
    few = ["axes.seed=[0]", "axes.partition.clusters=[4]"]
    shared = cells(study, "expert.batch=32", "expert.batch_of=monolith", *few)
    plain = cells(study, "expert.batch=8", *few)
    trainings = [{cell.training for cell in each if not cell.monolith} for each in (shared, plain)]
    assert trainings[0] == trainings[1]
    assert {cell.config.expert.batch for cell in shared if cell.monolith} == {32}


def test_what_is_left_to_the_rule_is_said_by_each_cell_and_is_no_other_training(study):
    left = cells(study, "budget.start=[0.25]", "encode.features='auto'")
    assert {cell.config.encode.features for cell in left} == {"pixels"}
    said = cells(study, "budget.start=[0.25]", "encode.features='pixels'")
    assert [cell.training for cell in left] == [cell.training for cell in said]
    start = cells(study, "budget.start=[0.25]", "encode.features='start'")
    assert {cell.training for cell in start if cell.monolith} == {
        cell.training for cell in said if cell.monolith
    }, "a monolith is not grouped by anything"


def test_without_a_condition_experts_may_be_guided_against_their_start(study):
    guided = [
        "budget.start=[0.25]",
        "axes.sample.guidance=[1.0, 2.0]",
        "axes.sample.against=['nothing', 'start']",
    ]
    found = cells(study, *guided)
    monoliths = [cell for cell in found if cell.monolith]
    assert {cell.config.sample.guidance for cell in monoliths} == {1.0}
    assert {cell.config.sample.against for cell in monoliths} == {"nothing"}
    experts = {
        (cell.config.sample.against, cell.config.sample.guidance) for cell in found if not cell.monolith
    }
    assert ("start", 2.0) in experts
    assert ("nothing", 2.0) not in experts
    known = {cell.beside for cell in monoliths}
    assert all(cell.beside in known for cell in found), "each has a monolith to be compared with"
