"""What is measured of an expert where noise is strong, and recipes that ask for what cannot be measured."""

import pytest
import torch

from atoll import config
from atoll.config import ENTRY_ROWS, ENTRY_SAMPLES, ENTRY_TIMES
from atoll.data.store import Reader
from atoll.errors import ConfigError
from atoll.flow import draws, gaussian, path
from atoll.models import checkpoint, entry
from atoll.models.expert import as_expert
from atoll.runs import graph
from atoll.sampling.opening import open_run_model
from atoll.train import holdout

PLAIN = ["expert.precision='float32'", "sample.precision='float32'", "sample.steps=2", "expert.steps=2"]


def trained(prepared, *overrides):
    run = prepared(*PLAIN, *overrides)
    for node in graph.nodes(run):
        if node.kind.network and node.stage.path.parent.name == "experts":
            node.make()
    return run


@pytest.mark.parametrize("kind", ["none", "class"])
def test_errors_are_those_of_the_network_and_of_the_moments_on_the_same_noisy_samples(prepared, kind):
    run = trained(prepared, "expert.entry=true", f"condition.kind='{kind}'")
    stage, cluster = run.expert(1), run.cluster(1)
    kept = entry.read(stage.path / entry.FILE, torch.device("cpu"))
    some = Reader([cluster], 1, run.config.seed).first(ENTRY_SAMPLES)
    shift = 0 if kept.shifts is None else kept.shifts[some.label]
    torch.testing.assert_close(kept.known.mean, (some.x_0 - shift).mean(0), rtol=1e-4, atol=1e-4)
    held = holdout.read([cluster], some.x_0.shape[1:])
    judged = some if held is None else held
    x_0, told = judged.x_0[:ENTRY_ROWS], judged.label[:ENTRY_ROWS] if kind == "class" else None
    noise = torch.randn(x_0.shape, generator=draws.generator(run.config.seed, "shrinkage"))
    network, about = checkpoint.load(stage.path / checkpoint.WEIGHTS, stage.path / checkpoint.CONFIG)
    expert = as_expert(network, about.objective)
    for place, time in enumerate(ENTRY_TIMES):
        t = torch.full((len(x_0),), time)
        x_t = path.point(x_0, noise, t)
        closed = gaussian.velocity(kept.told(told), x_t, t)
        for row, answer in enumerate((expert(x_t, t, told), closed)):
            left = (noise - x_0 - answer.detach()).square().mean()
            torch.testing.assert_close(kept.errors[row, place], left, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", ["none", "class"])
def test_after_two_steps_the_moments_know_more_and_samples_enter_by_them(prepared, kind):
    run = trained(prepared, "expert.entry=true", f"condition.kind='{kind}'")
    opened = open_run_model(run, "cpu")
    assert opened.ensemble.entry is not None
    assert opened.ensemble.entry.t == ENTRY_TIMES[0]
    assert opened.trace(2, strategy="ancestral").times[0] == ENTRY_TIMES[0]


def test_nothing_is_measured_unasked(prepared):
    run = trained(prepared)
    assert entry.FILE not in run.expert(0).record.files
    assert open_run_model(run, "cpu").ensemble.entry is None


@pytest.mark.parametrize(
    ("overrides", "match"),
    [
        (("expert.entry=true", "condition.kind='text'", "encode.text='a/b'"), "told nothing or a class"),
        (("expert.entry=true", "expert.adapter.rank=2", "start.steps=1"), "whole networks"),
        (("sample.entry=0.7",), "expert.entry = true"),
        (("sample.entry=0.0",), "'sample.entry' = 0.0: use 'auto', or a time above 0"),
        (("sample.entry=2",), "'sample.entry' = 2.*: use 'auto', or a time above 0"),
        (("sample.entry='never'",), "'sample.entry' = 'never': use 'auto', or a time above 0"),
    ],
    ids=str,
)
def test_recipes_that_ask_for_what_cannot_be_are_refused(tiny, overrides, match):
    with pytest.raises(ConfigError, match=match):
        config.check(config.load(tiny, list(overrides)), config.Facts())
