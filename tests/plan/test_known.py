import pytest

from atoll import config
from atoll.config import Facts
from atoll.errors import ConfigError
from atoll.plan import known


def run(**sections):
    return config.validate({"name": "a", **sections}, "a test")


def test_what_is_measured_wins_over_what_is_said():
    tree = run(plan={"shape": [3, 16, 16], "samples": 5, "classes": 2})
    said = known.about_data(tree, Facts())
    assert (said.shape, said.samples, said.classes) == ((3, 16, 16), 5, 2)
    measured = known.about_data(tree, Facts(shape=(1, 8, 8), rows=9, classes=4))
    assert (measured.shape, measured.samples, measured.classes) == ((1, 8, 8), 9, 4)


def test_shapes_are_read_off_the_recipe():
    assert known.about_data(run(), Facts()).shape == (1, 28, 28)
    assert known.about_data(run(data={"source": "x", "size": 64}), Facts()).shape == (3, 64, 64)
    latent = run(data={"source": "x", "size": 256}, encode={"autoencoder": "y"})
    assert known.about_data(latent, Facts()).shape == (4, 32, 32)
    with pytest.raises(ConfigError, match="shape of the samples is not known"):
        known.about_data(run(data={"source": "x"}), Facts())


def test_a_router_that_is_blind_is_told_nothing():
    tree = run(condition={"kind": "class"}, plan={"classes": 3}, router={"blind": True})
    about = known.about_data(tree, Facts())
    assert known.network_of(tree.router, tree, about).kind == "none"
    assert known.network_of(tree.expert, tree, about).kind == "class"
    assert known.network_of(tree.router, tree, about).clusters == tree.partition.clusters
