"""The gate of parts that nobody can replay: what harms is refused, what is honest comes in and is marked."""

import json

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from atoll.cli import components  # noqa: F401 - it adds its commands to the app
from atoll.cli.options import app
from atoll.components import adding, gate
from atoll.components.calibrating import judged, own_rows
from atoll.errors import ConfigError, DataError
from atoll.models import checkpoint
from atoll.runs.components import ROWS, Changed, Member, Weighed, read_members, write_members
from atoll.sampling import grown, opening
from atoll.train.prototypes import Labelled
from tests.components.conftest import own_pictures


def rewritten(stage, name, tensors):
    """Another file in a component, as its record says."""
    checkpoint.write_tensors(stage.path / name, tensors)
    stage.finish(stage.record.made_from, list(stage.record.files), stage.contents)


def hostile(component, run):
    """Says that its data is that of cluster 0, and answers far from all of it, about every sample alike.

    What chance it has is then that of the routing: noise in all weights harms few samples much.
    """
    own_rows(run)
    count = component.contents.prototypes
    known = {k: v[:count].contiguous() for k, v in grown.part_rows(run, 0).tensors().items()}
    rewritten(component, ROWS, known)
    weights = checkpoint.read_tensors(component.path / checkpoint.WEIGHTS)
    rewritten(component, checkpoint.WEIGHTS, {**weights, "head.bias": weights["head.bias"] + 3})
    return component


def changed(fell, error=0.001):
    return Changed(fell=fell, error=error, loss=1.0, samples=64)


@pytest.mark.parametrize(
    ("most", "home", "whole", "why"),
    [
        (-0.04, None, None, None),  # doubt of the routing
        (-0.06, None, None, "samples of the other parts"),
        (-0.04, 0.2, 0.1, None),
        (-0.04, -0.02, 0.0, "its own samples"),
        (-0.04, 0.02, -0.02, "all parts together"),
    ],
)
def test_what_is_refused(most, home, whole, why):
    found = Weighed(
        seen="held out",
        others=changed(most / 2),
        worst=2,
        most=changed(most),
        home=None if home is None else changed(home),
        whole=None if whole is None else changed(whole),
    )
    assert (gate.refusal(found) is None) if why is None else (why in str(gate.refusal(found)))


def test_one_part_may_not_pay_for_all():
    """The others together lose little, and one of them much."""
    found = Weighed(seen="held out", others=changed(-0.01), worst=2, most=changed(-0.2))
    assert "samples of part 2 are drawn worse" in str(gate.refusal(found))


def test_marks_say_how_far_it_was_checked():
    found = Weighed(seen="held out", others=changed(0), worst=0, most=changed(0))
    home = found.model_copy(update={"home": changed(0.1), "whole": changed(0.1)})
    against = home.model_copy(update={"against": "its own samples are drawn worse with it"})
    seen = home.model_copy(update={"seen": "trained on"})
    marks = [
        Member(number=3, name="squares", digest="0" * 64, weighed=one).mark
        for one in (None, found, home, seen, against)
    ]
    assert marks == [
        "not replayed, and never weighed",
        "not replayed: admitted by the gate on held-out data; what it is worth at home is not known",
        "not replayed: admitted by gate and credit on held-out data",
        "not replayed: admitted by gate and credit on data trained on",
        "not replayed, and added against the gate: its own samples are drawn worse with it",
    ]


def test_losses_are_those_of_the_run_with_and_without_it(finished, component):
    """Against the ensemble as it is opened before and after, at the same points."""
    before, digest = finished.members, component.digest
    without = opening.open_run_model(finished, **gate.PLAINLY).ensemble
    asked = gate._asked(finished, [(0, gate._some(judged(finished, 0), 8, digest, 0))], digest, 0)
    adding.add(finished, component.path)
    after = finished.members
    whole = opening.open_run_model(finished, **gate.PLAINLY).ensemble
    write_members(finished.path, before)  # its files are there, and nobody has said so yet
    losses = gate._losses(finished, without, after, finished.component(3), asked)
    there = losses[0] > 0
    assert bool(there[:: gate.EVERY].all())
    for one, loss in zip((without, whole), losses, strict=True):
        v = one.velocity(asked.x_t, asked.t)
        expected = (v - asked.target).square().flatten(1).mean(1)
        assert torch.allclose(loss[there], expected[there], rtol=2e-2)  # but for tiny weights
        assert bool((loss[~there] == 0).all())
    assert not torch.equal(*losses)


def test_harm_is_refused_in_one_line_and_leaves_nothing(finished, component, monkeypatch):
    for name in ("ROWS", "TOTAL"):  # so many that the harm is many times its error, whichever are drawn
        monkeypatch.setattr(gate, name, 4 * getattr(gate, name))
    with pytest.raises(ConfigError, match="makes this run worse.*other parts.*--allow-worse") as error:
        adding.add(finished, hostile(component, finished).path)
    assert "\n" not in str(error.value)
    assert read_members(finished.path).added == ()
    assert not finished.component(3).path.exists()
    member = adding.add(finished, component.path, allow_worse=True)
    assert member.mark.startswith("not replayed, and added against the gate: the samples of the other")
    assert read_members(finished.path).added == (member,)


def test_a_part_is_weighed_at_home_on_samples_that_are_brought(finished, component, tmp_path):
    """By the command. This one has had a few steps: the others draw squares better than it does."""
    np.savez(tmp_path / "unseen.npz", images=own_pictures(seed=7, count=40))
    words = ["add", str(finished.path), str(component.path), "--held-out", str(tmp_path / "unseen.npz")]
    with pytest.raises(ConfigError, match="its own samples are drawn worse with it"):
        app(words, standalone_mode=False)
    done = CliRunner().invoke(app, [*words, "--allow-worse", "--json"])
    assert done.exit_code == 0, done.output
    facts = json.loads(done.stdout)
    assert facts["weighed"]["home"]["samples"] == 40
    assert facts["weighed"]["home"]["fell"] < 0
    (member,) = finished.members.added
    assert facts["checked"] == member.mark
    events = [json.loads(line) for line in (finished.path / "events.jsonl").read_text().splitlines()]
    assert events[-1]["checked"] == member.mark
    text = CliRunner().invoke(app, ["drop", str(finished.path), "3"])
    assert text.exit_code == 0 and finished.members.present == ()


def test_too_few_samples_weigh_nothing(finished, tmp_path):
    np.savez(tmp_path / "few.npz", images=own_pictures(count=3))
    with pytest.raises(DataError, match="give at least 8"):
        gate.brought(finished, str(tmp_path / "few.npz"))


def test_which_samples_are_asked_follows_from_the_part():
    some = Labelled(torch.arange(100.0)[:, None], torch.arange(100))
    one, other = (gate._some(some, 10, digest * 64, 0) for digest in "ab")
    assert len(one.x_0) == 10 and one.label is not None
    assert one.x_0[:, 0].tolist() == one.label.tolist()
    assert not torch.equal(one.x_0, other.x_0)
    assert torch.equal(one.x_0, gate._some(some, 10, "a" * 64, 0).x_0)
