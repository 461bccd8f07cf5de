"""Attacks on exact experts: none pays with the defence, and the figures of the toy are as derived."""

import pytest
import torch
from benchmarks.studies import attackers

from atoll.credit import defence, shapley
from atoll.credit.shapley import Game
from tests.analytic import GaussianMixture, mixture_of

WHO, VICTIM = 1, 2


def game_of(data: GaussianMixture, num: int = 6000) -> tuple[Game, torch.Tensor]:
    """Experts that know their clusters, against a base that knows two moments of all."""
    x_0, cluster = data.draw(num, seed=4)
    g = torch.Generator().manual_seed(5)
    noise = torch.randn(x_0.shape, generator=g, dtype=torch.float64)
    t = 0.05 + 0.9 * torch.rand(num, generator=g, dtype=torch.float64)
    x_t = (1 - t)[:, None] * x_0 + t[:, None] * noise
    v = torch.stack([data.velocity(x_t, t, k) for k in range(data.clusters)])
    base = (x_t - (1 - t)[:, None] * x_0.mean(0)) * (t - (1 - t))[:, None] / ((1 - t) ** 2 + t**2)[:, None]
    base = base - x_0.mean(0)
    weights = data.posterior(x_t, 1 - t, t)
    return Game.of(weights, v - base, base, noise - x_0), cluster


@pytest.fixture(scope="module")
def played():
    return game_of(mixture_of(5, 2, dims=8, width=0.3))


def guarded(attack: attackers.Attack, played: tuple[Game, torch.Tensor]) -> torch.Tensor:
    """What everybody is paid with the defence."""
    game, cluster = played
    return attackers.pay(attackers.defended(attack, game.weights, cluster))


@pytest.mark.parametrize("name", attackers.ATTACKS)
def test_no_attack_pays_with_the_defence(played, name):
    game, _ = played
    cheating = attackers.ATTACKS[name](game, WHO, VICTIM)
    fair = guarded(attackers.honest(game, WHO, VICTIM), played)
    paid = guarded(cheating, played)
    experts = game.weights.shape[1]
    assert attackers.revenue(paid, WHO, experts) <= 1.1 * float(fair[WHO])
    for other in range(experts):
        if other != WHO:
            assert float(paid[other]) >= 0.95 * float(fair[other])


def test_the_defence_costs_an_honest_part_next_to_nothing(played):
    game, cluster = played
    plain = attackers.pay(defence.at_home(game, cluster, torch.arange(5)))
    assert torch.allclose(guarded(attackers.honest(game, 0, 1), played), plain, rtol=0.05)


def test_who_knows_its_cluster_exactly_gains_by_no_answer_but_its_own(played):
    """A proper score: every factor, and every mixture with what others say, pays less than honesty."""
    game, cluster = played
    owner = torch.arange(5)
    fair = float(shapley.shapley(defence.at_home(game, cluster, owner)).mean(0)[WHO])
    for factor in (0.5, 0.9, 1.1, 1.5, 2.0, 3.0):
        louder = attackers.exaggeration(game, WHO, VICTIM, factor).game
        paid = shapley.shapley(defence.at_home(louder, cluster, owner)).mean(0)
        assert float(paid[WHO]) < fair, factor
        home = cluster == WHO
        closed = -(2 * factor * game.along[:, WHO] + factor**2 * game.pairs[:, WHO, WHO])
        assert float(paid[WHO]) == pytest.approx(float(torch.where(home, closed, 0.0).mean()))
    best, _ = attackers.best_mixture(game, WHO, cluster)
    assert fair <= best <= 1.03 * fair, "what fits the very samples is a little more"


def test_without_it_copying_pays(played):
    game, _ = played
    cheating = attackers.copy(game, WHO, VICTIM)
    gained = attackers.revenue(attackers.pay(cheating.game), WHO, 5) / float(attackers.pay(game)[WHO])
    assert gained > 1.15
    assert torch.allclose(cheating.game.weights.sum(1), torch.ones(len(game.base)).double())


def test_without_it_overshooting_pays_and_harms(played):
    game, _ = played
    greedy = attackers.overshoot(game, WHO, VICTIM).game
    gained = shapley.shapley(greedy).mean(0)[WHO] - shapley.shapley(game).mean(0)[WHO]
    others = game.weighed(game.weights * (torch.arange(5) != WHO))
    most = shapley.redundancy(others).sum((1, 2)).mean() / 4
    assert 0 < float(gained) <= float(most) * 1.05, "E‖z‖²/4 at most, by an attacker who knows it all"
    assert float(shapley.losses(greedy).mean()) > float(shapley.losses(game).mean())


def test_attacks_are_what_they_say(played):
    game, _ = played
    values = shapley.shapley(game).mean(0)
    assert float(shapley.shapley(attackers.freeloader(game, WHO, 0).game).mean(0)[WHO]) == 0.0
    louder = shapley.shapley(attackers.exaggeration(game, WHO, 0).game).mean(0)
    assert float(louder[WHO]) < float(values[WHO])
    swapped = attackers.wrong_cluster(game, WHO, VICTIM).game
    assert torch.equal(swapped.along[:, WHO], game.along[:, VICTIM])
    noisy = shapley.shapley(attackers.noise(game, WHO, 0).game).mean(0)
    assert float(noisy[WHO]) < float(values[WHO])
    others = [k for k in range(5) if k != WHO]
    assert torch.allclose(noisy[others], values[others])
    spoilt = attackers.garbage_outside(game, WHO, 0).game
    assert float(shapley.shapley(spoilt).mean(0)[WHO]) < float(values[WHO])


def test_a_copy_is_seen_by_what_it_says(played):
    game, _ = played
    cheating = attackers.copy(game, WHO, VICTIM)
    assert defence.copies(defence.likeness(cheating.game)) == [(VICTIM, 5)]
    assert defence.copies(defence.likeness(game)) == []
