"""How large units are: hashes of a hundredth, what a training fetches, nothing where nothing is known."""

from atoll import config
from atoll.config import Facts
from atoll.net import sizing
from atoll.net.protocol import Manifest


def test_a_hundredth_of_the_longest_training_but_at_most_a_hundred_steps(tiny):
    assert sizing.every(config.load(tiny, ["expert.steps=700", "router.steps=300"])) == 7
    assert sizing.every(config.load(tiny, ["expert.steps=90000"])) == 100
    assert sizing.every(config.load(tiny, ["expert.steps=3", "router.steps=2"])) == 1


def test_what_the_plan_does_not_count_is_worth_no_more_than_the_shortest_training(tiny):
    run, manifest = config.load(tiny), Manifest(name="tiny", resolved={}, price=1000)
    sizes = sizing.sizes(run, manifest, 2, Facts(shape=(1, 28, 28), rows=5000, classes=10))
    assert sizes.unknown == min(sizes.flops.values()) < sizing.UNKNOWN


def test_a_training_fetches_its_samples_and_a_state(tiny):
    """A cluster's share of all bytes, and weights, average and two moments of the largest network."""
    run = config.load(tiny)
    facts = Facts(shape=(1, 28, 28), rows=5000, classes=10)
    less = sizing.download(run, facts)
    more = sizing.download(run, Facts(shape=(1, 28, 28), rows=10000, classes=10))
    assert abs(more - less - 5000 * 28 * 28 / run.partition.clusters) <= 1
    assert (less - 5000 * 28 * 28 / run.partition.clusters) % 16 < 1
    assert sizing.download(run, Facts()) == 0
