"""Adapters against their base, against weights with the update in them, and against peft."""

import itertools
from pathlib import Path
from typing import Any, get_args

import pytest
import torch
from torch import nn

from atoll.config import AdapterSettings, NetworkConfig
from atoll.errors import ConfigError, CorruptError
from atoll.models import adapter, checkpoint, conditions
from atoll.models.adapter import Adapted
from atoll.models.checkpoint import Blueprint, Objective
from atoll.models.dit import DiT
from atoll.runs import file_digest, write_json
from tests.models.test_dit import awake, captions

SHAPE = (2, 4, 4)
KINDS = get_args(conditions.Kind)
TARGETS = get_args(AdapterSettings.model_fields["targets"].annotation)
TOLD: dict[str, dict[str, int]] = {"none": {}, "class": {"classes": 3}, "text": {"text": 6}}


def blueprint(kind: str = "class", **network: Any) -> Blueprint:
    settings = {"width": 16, "depth": 2, "heads": 2, "patch": (2, 2), **network}
    return Blueprint(
        role="expert",
        network=NetworkConfig.model_validate(settings),
        shape=SHAPE,
        condition=kind,
        **TOLD[kind],
    )


def question(kind: str, batch: int = 3) -> tuple[Any, ...]:
    g = torch.Generator().manual_seed(1)
    told: Any = {"none": None, "class": torch.arange(batch) % 4, "text": captions(batch, length=5)}[kind]
    return torch.randn(batch, *SHAPE, generator=g), torch.rand(batch, generator=g), told


def network(kind: str = "class", **settings: Any) -> nn.Module:
    return awake(blueprint(kind, **settings).build())


def stirred(model: nn.Module, seed: int = 3) -> nn.Module:
    """An adapter that has learnt something: every number of it is drawn."""
    g = torch.Generator().manual_seed(seed)
    for value in adapter.learnt(model).values():
        value.data = torch.randn(value.shape, generator=g) * 0.3
    return model


@pytest.mark.each(8)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("modulation", ["block", "shared"])
@pytest.mark.parametrize("targets", TARGETS)
def test_an_adapter_that_has_learnt_nothing_is_its_base_bit_for_bit(kind, modulation, targets):
    asked, base = question(kind), network(kind, modulation=modulation, qk_norm=True)
    before = base(*asked)
    for rank, tokens, biases in ((2, 0, False), (0, 3, False), (2, 3, False), (0, 0, True), (2, 0, True)):
        model = adapter.attach(
            network(kind, modulation=modulation, qk_norm=True),
            AdapterSettings(rank=rank, targets=targets, tokens=tokens, biases=biases),
        )
        assert torch.equal(model(*asked), before)
        assert not torch.equal(stirred(model)(*asked), before)


def test_the_layers_of_each_target():
    names = {
        target: set(adapter.layers(network("text"), AdapterSettings(targets=target))) for target in TARGETS
    }
    block = {name.split(".", 3)[-1] for name in names["attention+mlp"]}
    assert block == {"attention.qkv", "attention.out", "cross.q", "cross.kv", "cross.out", "up", "down"}
    assert names["attention"] | names["mlp"] == names["attention+mlp"]
    more = names["attention+mlp+modulation"] - names["attention+mlp"]
    assert more == {f"trunk.blocks.{block}.modulation.layer" for block in range(2)}
    shared = adapter.layers(network("none", modulation="shared"), AdapterSettings(targets=TARGETS[-1]))
    assert adapter.SHARED in shared
    assert not adapter.layers(network(), AdapterSettings(rank=0, tokens=1))


@pytest.mark.parametrize("biases", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_merged_weights_answer_as_the_adapter_does(kind, biases):
    settings = AdapterSettings(rank=3, scale=0.7, targets="attention+mlp+modulation", biases=biases)
    base = network(kind).state_dict()
    model = stirred(adapter.attach(network(kind), settings))
    whole = blueprint(kind).build()
    whole.load_state_dict(adapter.merged(base, adapter.learnt(model), settings))
    torch.testing.assert_close(whole(*question(kind)), model(*question(kind)), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("reach", [0.0, 1.0, 2.5])
def test_an_adapter_goes_as_far_as_the_network_that_it_makes(reach):
    """θ_0 + s (θ - θ_0) of merged weights, and the same of what an adapter adds."""
    settings = AdapterSettings(rank=2, biases=True)
    base = network("class").state_dict()
    own = adapter.learnt(stirred(adapter.attach(network("class"), settings)))
    whole = adapter.merged(base, own, settings)
    farther = adapter.merged(base, adapter.scaled(own, reach), settings)
    for name, value in base.items():
        torch.testing.assert_close(farther[name], torch.lerp(value, whole[name], reach))


def test_what_learnt_tokens_say_is_scaled_and_their_keys_are_not():
    own = {
        "trunk.blocks.0.attention.tokens.keys": torch.ones(2),
        "trunk.blocks.0.tokens.values": torch.ones(2),
    }
    farther = adapter.scaled(own, 2.0)
    assert [float(value[0]) for value in farther.values()] == [1.0, 2.0]


def test_tokens_are_not_merged():
    with pytest.raises(ConfigError, match="cannot be merged"):
        adapter.merged({}, {}, AdapterSettings(tokens=1))


def loss_of(model: nn.Module, asked: tuple[Any, ...]) -> torch.Tensor:
    return (model(*asked) - asked[0]).square().mean()


@pytest.mark.parametrize("kind", ["class", "text"])
def test_the_gradients_are_those_of_finite_differences(kind):
    """In float64, along a random direction of all that is learnt; the base has none."""
    settings = AdapterSettings(rank=2, scale=1.3, tokens=2, biases=True)
    model = stirred(adapter.attach(network(kind), settings)).double()
    x_t, t, told = question(kind)
    asked = (x_t.double(), t.double(), told)
    torch.autograd.backward(loss_of(model, asked))
    learnt = adapter.learnt(model)
    assert all(value.grad is None for value in model.parameters() if not value.requires_grad)
    g = torch.Generator().manual_seed(5)
    for name, value in learnt.items():
        direction = torch.randn(value.shape, generator=g, dtype=torch.float64)
        assert value.grad is not None
        slope, step, losses = float((value.grad * direction).sum()), 1e-5, []
        with torch.no_grad():
            for sign in (1, -2):
                value += sign * step * direction
                losses.append(float(loss_of(model, asked)))
            value += step * direction
        assert slope == pytest.approx((losses[0] - losses[1]) / (2 * step), rel=1e-5, abs=1e-9), name


def by_peft(model: nn.Module, settings: AdapterSettings) -> nn.Module:
    """The same adapter by another implementation, with the same weights."""
    import peft  # it loads transformers for seconds: not before it is needed

    names = [name for name, module in model.named_modules() if isinstance(module, Adapted)]
    ours = {name: model.get_submodule(name) for name in names}
    config = peft.LoraConfig(
        r=settings.rank,
        lora_alpha=settings.rank * settings.scale,
        target_modules=names,
    )
    theirs = peft.inject_adapter_in_model(config, network())
    for name, layer in ours.items():
        theirs.get_submodule(name).lora_A["default"].weight.data = layer.lora_a.detach().clone()
        theirs.get_submodule(name).lora_B["default"].weight.data = layer.lora_b.detach().clone()
    return theirs


def test_peft_has_the_same_answers_and_gradients():
    settings = AdapterSettings(rank=4, scale=0.5)
    model = stirred(adapter.attach(network(), settings))
    theirs, asked = by_peft(model, settings), question("class")
    torch.testing.assert_close(model(*asked), theirs(*asked))
    for one in (model, theirs):
        torch.autograd.backward(loss_of(one, asked))
    for name, layer in model.named_modules():
        if isinstance(layer, Adapted):
            other = theirs.get_submodule(name)
            torch.testing.assert_close(layer.lora_a.grad, other.lora_A["default"].weight.grad)
            torch.testing.assert_close(layer.lora_b.grad, other.lora_B["default"].weight.grad)
    trained = sum(value.numel() for value in theirs.parameters() if value.requires_grad)
    assert sum(value.numel() for value in adapter.learnt(model).values()) == trained


def written(folder: Path, about: Blueprint, tensors: dict[str, torch.Tensor]) -> tuple[Path, Path]:
    folder.mkdir(exist_ok=True)
    weights, config = folder / checkpoint.WEIGHTS, folder / checkpoint.CONFIG
    checkpoint.write_tensors(weights, tensors)
    write_json(config, about.model_dump(mode="json"))
    return weights, config


def begun(tmp_path: Path, want: Blueprint, *, exact: bool = False, **of: Any) -> tuple[nn.Module, Blueprint]:
    have = blueprint().model_copy(update=of)
    files = written(tmp_path / "base", have, network().state_dict())
    sha256 = file_digest(files[0])
    return adapter.begin(*files, want, AdapterSettings(rank=2), sha256, exact=exact)


def test_a_base_is_taken_as_it_is(tmp_path):
    model, about = begun(tmp_path, blueprint().model_copy(update={"clusters": 5}))
    assert torch.equal(model(*question("class")), network()(*question("class")))
    assert about.adapter is not None
    assert about.adapter.base == file_digest(tmp_path / "base" / checkpoint.WEIGHTS)
    assert about.clusters == 5


def test_any_objective_of_the_base(tmp_path):
    noise = Objective(path="cosine", prediction="noise")
    want = blueprint().model_copy(update={"objective": noise})
    assert begun(tmp_path, want, objective=noise)[1].objective == noise
    with pytest.raises(ConfigError, match="it has path = 'cosine', prediction = 'noise'"):
        begun(tmp_path, blueprint(), objective=noise)
    assert begun(tmp_path, blueprint(), objective=noise, exact=True)[1].objective == noise


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"shape": (2, 8, 8)}, r"shape = \(2, 4, 4\)"),
        ({"network": NetworkConfig(width=32, depth=2, heads=2, patch=(2, 2))}, "width = 16"),
        ({"network": NetworkConfig(width=16, depth=2, heads=2, patch=(4, 4))}, r"patch = \(2, 2\)"),
        ({"condition": "none", "classes": 0}, "condition = 'class', classes = 3"),
    ],
)
def test_another_network_is_no_base(tmp_path, changes, words):
    with pytest.raises(ConfigError, match=words):
        begun(tmp_path, blueprint().model_copy(update=changes))


def test_neither_a_router_nor_an_adapter_is_a_base(tmp_path):
    with pytest.raises(ConfigError, match="is a router"):
        begun(tmp_path, blueprint(), role="router")
    about = checkpoint.Adaptation(rank=2, base="0" * 64)
    with pytest.raises(ConfigError, match="is an adapter itself"):
        begun(tmp_path, blueprint(), adapter=about)


ABOUT = blueprint().model_copy(update={"adapter": checkpoint.Adaptation(rank=2, tokens=1, base="0" * 64)})


def drawn() -> dict[str, torch.Tensor]:
    return {name: torch.randn(shape) for name, shape in adapter.shapes(ABOUT).items()}


def test_an_adapter_is_read_whole_or_not_at_all(tmp_path):
    tensors = drawn()
    weights, config = written(tmp_path, ABOUT, tensors)
    found = adapter.read(weights, checkpoint.read_blueprint(config))
    assert found.keys() == tensors.keys()
    first = next(iter(tensors))
    wrong: list[dict[str, torch.Tensor]] = [
        {**tensors, "trunk.embed.weight": torch.ones(1)},
        {name: value for name, value in tensors.items() if name != first},
        {**tensors, first: torch.ones(3, 16)},
        {**tensors, first: tensors[first] * torch.nan},
        {**tensors, first: tensors[first].int()},
    ]
    for one in wrong:
        checkpoint.write_tensors(weights, one)
        with pytest.raises(CorruptError, match="does not fit|no numbers"):
            adapter.read(weights, ABOUT)


def test_an_adapter_is_no_network_by_itself(tmp_path):
    with pytest.raises(ConfigError, match="no network by itself"):
        checkpoint.load(*written(tmp_path, ABOUT, drawn()))


def test_a_blueprint_without_an_adapter_is_what_it_was(tmp_path):
    """Folders that were written before there were adapters are read as ever."""
    tree = blueprint().model_dump(mode="json")
    del tree["adapter"]
    write_json(tmp_path / "config.json", tree)
    assert checkpoint.read_blueprint(tmp_path / "config.json") == blueprint()


def test_names_are_those_of_the_layers():
    for targets, tokens in itertools.product(TARGETS, (0, 2)):
        settings = AdapterSettings(rank=2, targets=targets, tokens=tokens)
        model = adapter.attach(DiT(blueprint().network, SHAPE, "class", 3), settings)
        layers = {name.rpartition(".")[0] for name in adapter.learnt(model) if "lora" in name}
        assert layers == set(adapter.layers(network(), settings))
