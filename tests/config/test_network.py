import pytest

from atoll.config import NetworkConfig
from atoll.config.network import SIZES


@pytest.mark.parametrize(("width", "heads"), [(100, 3), (36, 12), (384, 5)])
def test_heads_that_do_not_divide_are_told_with_some_that_do(width, heads):
    with pytest.raises(ValueError, match=f"multiple of heads {heads}; heads = ") as caught:
        NetworkConfig(width=width, heads=heads)
    offered = str(caught.value).split("heads = ")[1].split(" would")[0].split(" or ")
    for number in offered:
        NetworkConfig(width=width, heads=int(number))


def test_an_unset_patch_is_that_of_the_samples():
    assert NetworkConfig().patch_of((1, 28, 28)) == (2, 2)
    assert NetworkConfig().patch_of((2, 64)) == (1,)
    assert NetworkConfig(patch=(4, 4)).patch_of((1, 28, 28)) == (4, 4)


def test_a_size_brings_its_patch():
    network = NetworkConfig(size="S/4")
    assert (network.width, network.depth, network.heads) == tuple(SIZES["S"].values())
    assert network.patch == (4, 4)
