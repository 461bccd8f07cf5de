from types import SimpleNamespace

import pytest
import torch

import atoll
from atoll.errors import RunError
from atoll.evaluate import alone, evaluation, guidance
from atoll.evaluate.distances import Frechet
from atoll.pages import report
from atoll.publish import export
from atoll.runs import Run, graph, inputs
from atoll.sampling.opening import open_run_model


def trained(run):
    for node in graph.nodes(run):
        if node.kind.training is not None:
            node.make()


@pytest.mark.parametrize(
    ("best", "guidances", "expected", "tried"),
    [
        (1.0, (1.0, 1.5, 2.0), 1.0, [1.0, 1.5]),
        (1.6, (2.0, 1.0, 1.5), 1.5, [1.0, 1.5, 2.0]),
        (3.0, (1.0, 1.5, 2.0), 2.0, [1.0, 1.5, 2.0]),
    ],
)
def test_guidance_grows_as_long_as_that_helps(best, guidances, expected, tried):
    best_of, distances = guidance.nearest(guidances, lambda scale: (scale - best) ** 2)
    assert (best_of, [scale for scale, _ in distances]) == (expected, tried)


def test_of_one_value_nothing_is_asked():
    assert guidance.nearest((1.5,), lambda scale: pytest.fail("asked")) == (1.5, ())


def test_the_distance_is_that_of_the_principal_components(monkeypatch):
    """Of what is seen few axes vary: |Δμ|² + Σ (σ - σ')², whatever the other axes do."""
    monkeypatch.setattr(guidance, "Unlearnt", lambda shape: lambda x_0: x_0.flatten(1))
    source = torch.Generator().manual_seed(0)
    spread = torch.tensor([3.0, 2.0] + [0.0] * 30)
    real = torch.randn(1000, 32, generator=source) * spread
    to = guidance.distance_to(real.view(-1, 2, 4, 4))
    assert to(real.view(-1, 2, 4, 4)) == pytest.approx(0, abs=1e-3)
    mean = real.mean(0)
    wider = mean + 2 * (real - mean)
    own = real.var(0).sum()
    assert to(wider.view(-1, 2, 4, 4)) == pytest.approx(float(own), rel=1e-3)
    moved = real + torch.tensor([0.0, 5.0] + [0.0] * 30)
    assert to(moved.view(-1, 2, 4, 4)) == pytest.approx(25, rel=1e-3)


def test_samples_of_every_cluster_are_compared_with(monkeypatch):
    """They rest one cluster after the other: the first thousand would be of the first cluster."""
    seen: list[torch.Tensor] = []

    def see(x_0):
        seen.append(x_0)
        return x_0.flatten(1)

    monkeypatch.setattr(guidance, "Unlearnt", lambda shape: see)
    real = torch.arange(4000.0)[:, None, None] * torch.ones(1, 1, 30)
    guidance.distance_to(real)
    assert seen[0].shape == (1000, 1, 30)
    assert seen[0][:, 0, 0].tolist() == list(range(0, 4000, 4))


def test_shapes_are_seen_that_have_the_moments_of_the_data():
    """Noise with the mean and the covariance of strokes: near to them in pixels, and far as seen."""
    source = torch.Generator().manual_seed(0)
    place = torch.randint(16, (2000,), generator=source)
    strokes = torch.zeros(2000, 1, 16, 16)
    strokes[torch.arange(2000), 0, :, place] = 1
    mean = strokes.flatten(1).mean(0)
    root = torch.linalg.svd(strokes.flatten(1) - mean, full_matrices=False)
    noise = torch.randn(2000, len(root.S), generator=source) * root.S / 2000**0.5
    alike = (mean + noise @ root.Vh).view(-1, 1, 16, 16)
    to, pixels = guidance.distance_to(strokes[:1000]), Frechet(strokes[:1000].flatten(1))
    assert to(alike[:1000]) > 20 * to(strokes[1000:])
    assert pixels(alike[:1000].flatten(1)) < 4 * pixels(strokes[1000:].flatten(1))


def test_a_run_samples_with_what_was_chosen_and_so_does_its_export(prepared, tmp_path):
    small = [f"{part}.steps=2" for part in ("start", "expert", "router")]
    asked = ["sample.against='start'", "sample.guidances=[1.0,4.0]", "sample.steps=2", "sample.num=4"]
    run = prepared(*small, *asked, "expert.precision='float32'")
    trained(run)
    with pytest.raises(RunError, match="`atoll run` chooses"):
        open_run_model(run)
    graph.node(run, "guidance").make()
    found = run.guidance.contents
    assert [scale for scale, _ in found.distances] == [1.0, 4.0]
    other = ({1.0, 4.0} - {found.guidance}).pop()
    assert "guidance" in [node.name for node in graph.node(run, "samples").reads]
    export.export(run, str(tmp_path / "out"))
    for place in (run.path, tmp_path / "out"):
        sampler = atoll.load(place)
        assert sampler.defaults.guidance == found.guidance
        assert torch.equal(sampler.sample(4), sampler.sample(4, guidance=found.guidance))
        assert not torch.equal(sampler.sample(4), sampler.sample(4, guidance=other))


@pytest.mark.parametrize("serving", [None, (0, 2)])
def test_samples_are_drawn_of_each_cluster_by_its_share(prepared, monkeypatch, serving):
    """Drawn by chance, what two trials differ by would hide behind whose samples they happened to be."""
    asked = []

    def sample(num, **settings):
        asked.append(settings)
        return torch.zeros(num, 1, 28, 28)

    ensemble = SimpleNamespace(kind="none")
    monkeypatch.setattr(
        guidance,
        "open_run_model",
        lambda *_, **__: SimpleNamespace(ensemble=ensemble, sample=sample),
    )
    experts = [] if serving is None else [f"sample.experts={list(serving)}"]
    run = prepared("sample.extrapolations=[1.0,2.0]", "start.steps=2", *experts)
    guidance._drawn_from(run)(1.5, 1.0)
    sizes = [run.cluster(k).contents.rows if serving is None or k in serving else 0 for k in range(3)]
    counts = [asked[0]["cluster"].count(k) for k in range(3)]
    assert sum(counts) == 128 and asked[0]["strategy"] == "oracle"
    assert asked[0]["entry"] == 1, "from noise: where samples enter later, moments hide what experts lack"
    for count, size in zip(counts, sizes, strict=True):
        assert count == pytest.approx(128 * size / sum(sizes), abs=1)
    noise, owners = asked[0]["noise"], torch.tensor(asked[0]["cluster"])
    for owner in owners.unique():
        assert noise[owners == owner].mean(0).abs().max() < 1e-5, (
            "nor behind what noise they happened to have"
        )


def test_where_samples_enter_makes_no_other_choice(finished):
    """It is drawn from noise in any case: cells of a study that differ in this have one choice."""
    asked = [
        finished.config.sample.model_copy(update={"entry": entry, "extrapolations": (1.0, 2.0)})
        for entry in ("auto", 1.0, 0.7)
    ]
    made = [
        inputs.guidance_from(Run(finished.path, finished.config.model_copy(update={"sample": sample})))
        for sample in asked
    ]
    assert made[0] == made[1] == made[2]


def test_what_was_chosen_is_measured_and_said(prepared, monkeypatch):
    """Measurements and the page are of samples as they are drawn, not of what could have been chosen."""
    monkeypatch.setattr(guidance, "nearest", lambda values, tried: (max(values), ((1.0, 3.0), (4.0, 2.0))))
    small = [f"{part}.steps=2" for part in ("start", "expert", "router")]
    asked = ["sample.against='start'", "sample.guidances=[1.0,4.0]", "evaluate.routing=0"]
    run = prepared(*small, *asked, "expert.precision='float32'")
    trained(run)
    assert run.sampled_with == run.config.sample, "nothing is chosen yet"
    graph.node(run, "guidance").make()
    requests = []

    def judged(sampler, judge, num, request, progress):
        requests.append(request)
        return {"strategy": "ancestral", "num": num}, None

    monkeypatch.setattr(evaluation, "sample_and_judge", judged)
    monkeypatch.setattr(evaluation, "Judge", lambda run, config: SimpleNamespace(real=[], ready=lambda: None))
    record = evaluation.measure(run)
    assert [request["guidance"] for request in requests] == [4.0]
    assert (record["sample"]["guidance"], record["sample"]["guidances"]) == (4.0, [])
    facts = dict(report._facts(run, "ancestral"))
    assert facts["sampled with"].endswith("ancestral, guidance 4")
    assert facts["guidance chosen by samples"] == "1: 3, 4: 2"
    assert "extrapolation chosen by samples" not in facts


def test_a_finished_choice_is_not_made_again(prepared, monkeypatch):
    small = [f"{part}.steps=2" for part in ("start", "expert", "router")]
    run = prepared(*small, "sample.against='start'", "sample.guidances=[1.0]", "expert.precision='float32'")
    trained(run)
    before = guidance.choose(run).record
    monkeypatch.setattr(guidance, "nearest", None)
    assert guidance.choose(run).record == before
    assert before.contents.facts()["guidance"] == 1.0


def test_experts_that_are_told_classes_choose_too(prepared, monkeypatch):
    """They are told what samples of all clusters are, which rest one cluster after the other."""
    rows, asking = [], alone.asking

    def noted(*given):
        rows.append(given)
        return asking(*given)

    monkeypatch.setattr(alone, "asking", noted)
    small = [f"{part}.steps=2" for part in ("start", "expert", "router")]
    asked = ["sample.against='start'", "sample.untold=true", "sample.guidances=[1.0,3.0]"]
    run = prepared(*small, *asked, "condition.kind='class'", "expert.precision='float32'")
    trained(run)
    graph.node(run, "guidance").make()
    assert [scale for scale, _ in run.guidance.contents.distances] == [1.0, 3.0]
    batch, kind, chosen = rows[0]
    assert kind == "class" and len(chosen) == 128 and batch.cluster[chosen].unique().tolist() == [0, 1, 2]
    before = inputs.guidance_from(run)["sample"]
    assert before != inputs.guidance_from(run.changed(["sample.untold=false"]))["sample"]


def test_how_far_experts_are_taken_is_chosen_before_guidance_and_kept(prepared, tmp_path, monkeypatch):
    asked, nearest = [], guidance.nearest

    def noted(values, tried):
        asked.append(tuple(values))
        return nearest(values, lambda value: abs(value - 2) + 0 * tried(value))

    monkeypatch.setattr(guidance, "nearest", noted)
    small = [f"{part}.steps=2" for part in ("start", "expert", "router")]
    more = ["sample.extrapolations=[1.0,2.0]", "sample.steps=2", "sample.num=4", "sample.precision='float32'"]
    run = prepared(*small, *more, "expert.precision='float32'")
    trained(run)
    with pytest.raises(RunError, match="or say extrapolate="):
        open_run_model(run)
    graph.node(run, "guidance").make()
    assert asked == [(1.0, 2.0), (1.0,)]
    choice = run.guidance.contents
    assert (choice.extrapolate, choice.guidance, choice.distances) == (2.0, 1.0, ())
    assert [reach for reach, _ in choice.extrapolations] == [1.0, 2.0]
    export.export(run, str(tmp_path / "out"))
    farther = open_run_model(run, extrapolations=(), extrapolate=2.0).sample(4)
    assert not torch.equal(farther, open_run_model(run, extrapolate=1.0).sample(4))
    for place in (run.path, tmp_path / "out"):
        assert torch.equal(atoll.load(place).sample(4), farther)
