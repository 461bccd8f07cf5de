import torch

from atoll.components import adding, calibrating
from atoll.flow import draws, path
from atoll.models.prototypes import BINS
from atoll.runs.components import Members
from atoll.sampling import grown
from atoll.train import prototypes


def cross_entropy(module, x_0, owner, weights, t, beta):
    """Of the routing between groups, at one time."""
    times = torch.full((len(x_0),), t)
    noise = torch.randn(x_0.shape, generator=draws.generator(7, "test"))
    logits = beta * module(path.point(x_0, noise, times), times)
    return float((-logits.log_softmax(1).gather(1, owner[:, None])[:, 0] * weights).sum())


def test_temperatures_lower_the_cross_entropy_on_samples_that_nobody_saw(finished, component):
    adding.add(finished, component.path)
    members = finished.members
    assert len(members.betas) == BINS
    module = grown.between(finished, members, learnt=False)
    halves = [calibrating.judged(finished, k) for k in range(3)]
    halves.append(calibrating.samples_in(finished.component(3)))
    x_0 = torch.cat([half.x_0 for half in halves])
    owner = torch.cat([torch.full((len(half.x_0),), k) for k, half in enumerate(halves)])
    priors = torch.tensor(grown.shares(finished).priors)
    weights = priors[owner] / torch.bincount(owner)[owner]
    betas = calibrating.inverse_temperatures(finished, members)
    assert betas == members.betas
    for t in (0.05, 0.25, 0.45):
        plain, cooled = (
            cross_entropy(module, x_0, owner, weights, t, beta) for beta in (1.0, betas[int(t * 10)])
        )
        assert cooled < plain


def test_rows_and_judges_are_different_samples(finished):
    for k in range(3):
        first, second = calibrating._first_half(finished, k), calibrating.judged(finished, k)
        assert len(second.x_0) == prototypes.JUDGED
        assert float(torch.cdist(first.x_0.flatten(1), second.x_0.flatten(1)).min()) > 0


def test_rows_of_own_clusters_are_made_once(finished):
    calibrating.own_rows(finished)
    before = {
        grown.known_rows(finished, k): grown.known_rows(finished, k).stat().st_mtime_ns for k in range(3)
    }
    calibrating.own_rows(finished)
    assert before == {path: path.stat().st_mtime_ns for path in before}


def test_where_nobody_was_added_there_is_nothing_between(finished):
    calibrating.own_rows(finished)
    module = grown.between(finished, Members(), learnt=False)
    assert module.groups == 3
