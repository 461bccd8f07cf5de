import pytest
import torch
from torch import Tensor, nn

from atoll.errors import ConfigError
from atoll.models import adapt, checkpoint
from atoll.models.checkpoint import Blueprint, Objective
from atoll.models.conditions import TextCondition
from atoll.models.dit import DiT, positions
from tests.models.test_dit import awake

NETWORK = {"width": 24, "depth": 2, "heads": 2, "patch": (2, 2)}
X, T = torch.randn(3, 1, 8, 8, generator=torch.Generator().manual_seed(0)), torch.tensor([0.1, 0.5, 0.9])


def blueprint(**changes: object) -> Blueprint:
    own: dict[str, object] = {k: changes.pop(k) for k in ("width", "modulation") if k in changes}
    network = {**NETWORK, **own}
    tree = {"role": "expert", "network": network, "shape": (1, 8, 8), **changes}
    return Blueprint.model_validate(tree)


def weights(have: Blueprint) -> dict[str, Tensor]:
    return dict(awake(have.build()).state_dict())


def fitted(
    tensors: dict[str, Tensor], have: Blueprint, want: Blueprint, how: adapt.Conversion = "none"
) -> tuple[DiT, Blueprint]:
    found, got = adapt.fit(tensors, have, want, how, dict(want.build().state_dict()))
    network = got.build()
    network.load_state_dict(found)
    assert isinstance(network, DiT)
    return network, got


def computed(tensors: dict[str, Tensor], have: Blueprint, condition: Tensor | None = None) -> Tensor:
    network = have.build()
    network.load_state_dict(tensors)
    return network(X, T, condition)


def modulations(network: DiT) -> list[nn.Module]:
    return [block.get_submodule("modulation") for block in network.trunk.blocks]


CLASSES = blueprint(condition="class", classes=4)
NOTHING = torch.full((3,), 4)


def test_the_same_network_is_taken_as_it_is():
    tensors = weights(CLASSES)
    network, got = fitted(tensors, CLASSES, CLASSES)
    assert got == CLASSES
    assert torch.equal(network(X, T, NOTHING), computed(tensors, CLASSES, NOTHING))


def test_without_classes_it_is_the_network_that_was_told_nothing():
    tensors = weights(CLASSES)
    network, _ = fitted(tensors, CLASSES, blueprint())
    torch.testing.assert_close(network(X, T), computed(tensors, CLASSES, NOTHING))


def test_other_classes_start_as_nothing_told():
    tensors = weights(CLASSES)
    network, _ = fitted(tensors, CLASSES, blueprint(condition="class", classes=7))
    expected = computed(tensors, CLASSES, NOTHING)
    for told in (0, 3, 7):
        torch.testing.assert_close(network(X, T, torch.full((3,), told)), expected)


def test_a_text_instead_of_classes_starts_as_nothing_told():
    """New cross-attention begins with zero, so that no text changes anything yet."""
    tensors = weights(CLASSES)
    network, _ = fitted(tensors, CLASSES, blueprint(condition="text", text=5))
    text = TextCondition(torch.randn(3, 2, 5), torch.ones(3, 2, dtype=torch.bool), torch.randn(3, 5))
    torch.testing.assert_close(network(X, T, text), computed(tensors, CLASSES, NOTHING))


def test_a_finer_table_of_positions_has_the_places_between():
    """Resampling a table that is linear in the place: nearly exact away from the edges."""
    have = blueprint(tables=True, shape=(1, 16, 16))
    tensors = weights(have)
    rows = torch.arange(8.0).repeat_interleave(8)
    tensors["trunk.position"] = rows[:, None].expand(64, 24).contiguous()
    found, got = adapt.to_grid(tensors, have, (1, 32, 32))
    assert got.shape == (1, 32, 32)
    table = found["trunk.position"][:, 0].view(16, 16)
    torch.testing.assert_close(table[6:10, 0], torch.tensor([2.75, 3.25, 3.75, 4.25]), atol=0.05, rtol=0)
    torch.testing.assert_close(table, table[:, :1].expand(16, 16))


def test_another_grid_keeps_the_old_table_where_both_agree():
    have = blueprint()
    tensors = weights(have)
    same, _ = adapt.to_grid(tensors, have, (1, 8, 8))
    torch.testing.assert_close(same["trunk.position"], positions((4, 4), 24), atol=1e-6, rtol=0)
    network, got = fitted(tensors, have, blueprint(shape=(1, 12, 4)))
    assert got.tables
    assert network(torch.randn(2, 1, 12, 4), T[:2]).shape == (2, 1, 12, 4)
    again, _ = fitted({**network.state_dict()}, got, blueprint(shape=(1, 12, 4)))
    assert torch.equal(again.trunk.position, network.trunk.position)


def test_shared_modulation_is_exact_where_blocks_differ_by_constants():
    have = blueprint()
    tensors = weights(have)
    name = "trunk.blocks.{}.modulation.layer.weight"
    tensors[name.format(1)] = tensors[name.format(0)].clone()
    tensors["trunk.modulation.layer.weight"] = torch.zeros(48, 24)
    shared = adapt.to_shared(tensors, have)
    network = blueprint(modulation="shared").build()
    network.load_state_dict({**network.state_dict(), **shared})
    assert isinstance(network, DiT)
    old = have.build()
    old.load_state_dict(tensors)
    assert isinstance(old, DiT)
    c = network.trunk.time(T)
    for_blocks, _ = network.trunk.modulators(c)
    for ours, theirs in zip(modulations(network), modulations(old), strict=True):
        for left, right in zip(ours(for_blocks), theirs(nn.functional.silu(c)), strict=True):
            torch.testing.assert_close(left, right, atol=1e-5, rtol=1e-5)


def test_shared_modulation_keeps_the_mean_over_times():
    have = blueprint(condition="class", classes=4)
    tensors = weights(have)
    want = blueprint(condition="class", classes=4, modulation="shared")
    network, _ = fitted(tensors, have, want)
    old = have.build()
    old.load_state_dict(tensors)
    assert isinstance(old, DiT)
    times = torch.arange(64) / 64 * 0.999
    null = torch.full((64,), 4)
    c = old.trunk.time(times) + old.trunk.condition(null)
    for_blocks, for_last = network.trunk.modulators(c)
    last = (network.trunk.modulation, old.trunk.modulation)
    for ours, theirs in [*zip(modulations(network), modulations(old), strict=True), last]:
        mine = ours(for_last if ours is network.trunk.modulation else for_blocks)
        for left, right in zip(mine, theirs(nn.functional.silu(c)), strict=True):
            torch.testing.assert_close(left.mean(0), right.mean(0), atol=1e-4, rtol=1e-4)


NOISE = Objective(path="cosine", prediction="noise")


def test_another_objective_needs_a_word():
    have = blueprint(objective=NOISE.model_dump())
    with pytest.raises(ConfigError, match=r"predicts noise on the cosine path.*expert\.convert"):
        fitted(weights(have), have, blueprint())


def test_the_exact_way_keeps_network_and_objective():
    have = blueprint(objective=NOISE.model_dump())
    tensors = weights(have)
    network, got = fitted(tensors, have, blueprint(), "exact")
    assert got.objective == NOISE
    assert all(torch.equal(value, tensors[name]) for name, value in network.state_dict().items())


def test_the_published_way_keeps_the_blocks_and_nothing_of_the_last_layer():
    have = blueprint(objective=NOISE.model_dump())
    tensors = weights(have)
    network, got = fitted(tensors, have, blueprint(), "published")
    assert got.objective == Objective(rounded=True)
    found = network.state_dict()
    assert torch.equal(found["trunk.blocks.1.up.weight"], tensors["trunk.blocks.1.up.weight"])
    assert found["head.weight"].abs().max() == 0
    assert found["trunk.modulation.layer.weight"].abs().max() == 0
    again, same = fitted(dict(found), got, blueprint())  # and it can be started from in turn
    assert same.objective == got.objective
    assert torch.equal(again(X, T), network(X, T))


@pytest.mark.parametrize(
    ("want", "said"),
    [
        (blueprint(width=48), "set in \\[expert\\]: width = 24"),
        (blueprint(shape=(3, 8, 8)), r"\[1, 8, 8\].*not \[3, 8, 8\]"),
    ],
)
def test_what_cannot_be_adapted_is_named(want, said):
    have = blueprint()
    with pytest.raises(ConfigError, match=said):
        fitted(weights(have), have, want)


def test_one_modulation_cannot_be_taken_apart():
    have = blueprint(modulation="shared")
    with pytest.raises(ConfigError, match="modulation = 'shared'"):
        fitted(weights(have), have, blueprint())


def test_old_blueprints_predict_the_velocity(tmp_path):
    old = CLASSES.model_dump(mode="json", exclude={"objective", "tables"})
    assert Blueprint.model_validate(old).objective == Objective()
    assert checkpoint.Blueprint.model_validate(old) == CLASSES
