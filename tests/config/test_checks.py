import pytest

from atoll import config
from atoll.config import Facts
from atoll.config.checks import check, problems
from atoll.errors import ConfigError


def run(*overrides: str) -> config.RunConfig:
    return config.validate(config.assignments(["name=a", *overrides]), "a test")


PICTURES = Facts(shape=(1, 28, 28), rows=5000, classes=10, captions=False)
SERIES = Facts(shape=(2, 64), rows=500, classes=0, captions=False, kind="series")


@pytest.mark.parametrize(
    ("overrides", "facts", "said"),
    [
        (["condition.kind=text"], Facts(), "set encode.text"),
        (["condition.kind=text", "encode.text=a/b"], PICTURES, "the samples have no captions"),
        (["condition.kind=class"], SERIES, "the samples have no labels"),
        (["partition.within=class"], SERIES, "the samples have no labels: leave it out"),
        (["expert.patch=[5,5]"], PICTURES, r"expert.patch = \[5, 5\] does not divide .*\[4, 4\] would fit"),
        (["router.patch=[3,3]"], PICTURES, r"router.patch = \[3, 3\] does not divide"),
        (["expert.patch=[2,2]"], SERIES, r"is for 2 axes, but samples of 2 x 64 .* have 1 axis: \[1\]"),
        (["student.patch=[3,3]", "student.steps=1"], PICTURES, "student.patch"),
        (["expert.size=S/3"], PICTURES, r"expert.patch = \[3, 3\]"),
        (["expert.patch=[5,5]", "plan.shape=[1,28,28]"], Facts(), "does not divide"),
        (["partition.clusters=6000"], PICTURES, "clusters = 6,000, but there are 5,000 samples"),
        (["sample.strategy=top-9", "partition.clusters=2"], Facts(), "'top-9' of 2 experts.*top-1 to top-2"),
        (["evaluate.strategies=['top-9']"], Facts(), "evaluate.strategies: 'top-9' of 8 experts"),
        (["encode.features=start"], Facts(), "experts begin with nothing: add .start., or use 'pixels'"),
        (["encode.features=start", "partition.like=a"], Facts(), "partition.like has features of its own"),
        (["partition.method=labels"], SERIES, "partition.method is 'labels', but the samples have no labels"),
        (["partition.method=labels", "partition.clusters=11"], PICTURES, "10 labels for 11 clusters"),
        (["encode.features=pixles"], Facts(), "encode.features: no features 'pixles'; did you mean 'pixels'"),
        (["encode.features=a/b"], SERIES, "'a/b' sees pictures, not series: use 'pixels'"),
        (["encode.autoencoder=a/b"], SERIES, "encode.autoencoder is for pictures and video, not series"),
        (["sample.strategy=top-3", "sample.experts=[0,1]"], Facts(), "'top-3' of 2 experts"),
        (["sample.protect=true", "sample.strategy=top-1"], Facts(), "protect composes two halves"),
        (["sample.protect=true", "sample.experts=[0]"], Facts(), "protect composes two halves"),
        (["sample.strategy=oracle"], Facts(), "sample.strategy: 'oracle' needs the cluster of every sample"),
        (["evaluate.strategies=['oracle']"], Facts(), "evaluate.strategies: 'oracle' needs the cluster"),
        (["sample.prompts=['a cat']"], Facts(), "sample.prompts are for condition.kind = 'text'"),
        (["sample.model=student"], Facts(), r"the recipe trains none: add \[student\]"),
        (["sample.model=few-step", "student.steps=9"], Facts(), r"trains none: add \[student.few\]"),
        (
            ["sample.model=few-step", "student.few.steps=9", "sample.guidance=2.0"],
            Facts(),
            "cannot be guided afterwards",
        ),
        (["student.init=start"], Facts(), "student.init 'start' needs experts that share a start"),
        (["student.init=average"], Facts(), "student.init 'average' needs experts that share a start"),
        (["student.few.init=average"], Facts(), "student.few.init 'average' needs experts that share"),
        (
            ["student.init=start", "start.steps=9", "student.width=192", "student.heads=3"],
            Facts(),
            "student.init 'start' needs a student with the network of the experts",
        ),
        (
            ["student.init=expert", "student.depth=3"],
            Facts(),
            "student.init 'expert' needs a student with the network of the experts",
        ),
        (
            ["student.data=drawn", "condition.kind=text", "encode.text=a/b"],
            Facts(),
            "needs prompts: set sample.prompts",
        ),
        (["sample.guidances=[1.0,2.0]"], Facts(), "set sample.against = 'start'"),
        (["sample.against=start"], Facts(), "sample.against 'start' needs experts that share a start: add"),
        (["sample.rest=start"], Facts(), "set sample.against = 'start'"),
        (["sample.untold=true"], Facts(), "set against = 'start' and a condition"),
        (
            ["sample.untold=true", "sample.against=start", "start.steps=9"],
            Facts(),
            "of a start that could be told more",
        ),
        (
            ["sample.untold=true", "sample.against=start", "sample.rest=start", "condition.kind=class"],
            Facts(),
            "leave out sample.untold",
        ),
        (["sample.experts=[8]"], Facts(), "sample.experts names 8, but this run has experts 0 to 7"),
    ],
)
def test_what_cannot_work_is_refused(overrides, facts, said):
    with pytest.raises(ConfigError, match=said) as caught:
        check(run(*overrides), facts)
    assert "\n" not in str(caught.value)


def test_all_mistakes_are_told_at_once_and_each_once():
    wrong = list(problems(run("expert.patch=[5,5]", "router.patch=[5,5]", "condition.kind=text"), PICTURES))
    assert [what.split()[0] for what in wrong] == [
        "condition.kind",
        "condition.kind",
        "expert.patch",
        "router.patch",
    ]


def test_an_override_is_named():
    tree = {"name": "a", "expert": {"override": [{"clusters": [1], "patch": [3, 3]}]}}
    with pytest.raises(ConfigError, match="override.* of cluster 1: patch"):
        check(config.validate(tree, "a test"), PICTURES)


def test_a_monolith_has_no_router_to_be_wrong():
    check(run("partition.clusters=1", "router.patch=[3,3]"), PICTURES)


def test_positions_need_a_width_that_has_room_for_the_axes():
    video = Facts(shape=(3, 8, 16, 16))
    with pytest.raises(ConfigError, match="expert.width = 64 must be a multiple of 6"):
        check(run("expert.width=64", "expert.heads=4"), video)


@pytest.mark.parametrize(
    "overrides",
    [
        ["student.init=start", "start.steps=9"],
        ["student.init=average", "expert.init=/a/b"],
        ["student.init=expert", "expert.override=[{clusters=[0], depth=3}]"],
        ["student.steps=0", "student.init=average", "student.few.init=expert", "student.few.teacher=label"],
        ["sample.model=few-step", "student.few.steps=9"],
        ["sample.protect=true"],
        ["partition.method=labels"],
    ],
)
def test_what_can_work_is_left_alone(overrides):
    check(run(*overrides), PICTURES)


def test_defaults_fit_anything():
    for facts in (Facts(), PICTURES, SERIES, Facts(shape=(3, 8, 16, 16))):
        check(run(), facts)


def test_states_that_are_at_rest_need_no_encoder():
    check(run("condition.kind=text"), Facts(shape=(1, 8, 8), captions=True, text=8))
