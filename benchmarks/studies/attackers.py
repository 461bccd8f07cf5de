"""What a part can do to be paid more than it is worth, as changes of the game that values are read off.

Every attack but noise says combinations of what experts say: d'_p = Σ_j c_pj d_j. Noise is taken in
expectation.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from atoll.credit import defence, shapley
from atoll.credit.shapley import Game

CLONES = 3


@dataclass(frozen=True)
class Attack:
    """A game in which one party cheats."""

    game: Game
    """Its first columns are the parts of the honest game; further ones are the attacker's as well."""
    owner: Tensor
    """The cluster that each part is registered for."""
    late: int
    """The attacker's own part, which was registered again for the attack and so is the later of two alike."""


def said(game: Game, coefficients: Tensor) -> Game:
    """The game in which part p says Σ_j c_pj d_j; `coefficients` is (batch, parts, experts)."""
    return Game(
        game.weights,
        torch.einsum("bpj,bj->bp", coefficients, game.along),
        torch.einsum("bpi,bij,bqj->bpq", coefficients, game.pairs, coefficients),
        game.base,
    )


def _itself(game: Game) -> Tensor:
    batch, experts = game.weights.shape
    return torch.eye(experts, dtype=game.weights.dtype).expand(batch, -1, -1).clone()


def _alone(game: Game, coefficients: Tensor, who: int) -> Attack:
    return Attack(said(game, coefficients), torch.arange(game.weights.shape[1]), who)


def honest(game: Game, who: int, victim: int) -> Attack:
    """Nothing."""
    return _alone(game, _itself(game), who)


def freeloader(game: Game, who: int, victim: int) -> Attack:
    """Say what the base says."""
    return exaggeration(game, who, victim, 0.0)


def exaggeration(game: Game, who: int, victim: int, factor: float = 2.0) -> Attack:
    """Say more of the same."""
    coefficients = _itself(game)
    coefficients[:, who, who] = factor
    return _alone(game, coefficients, who)


def overshoot(game: Game, who: int, victim: int) -> Attack:
    """Also say half of what others say already: w d' = w d + Σ_{j≠i} w_j d_j / 2, which pays most."""
    coefficients = _itself(game)
    own = game.weights[:, who, None].clamp(min=1e-6)
    coefficients[:, who] = game.weights / (2 * own)
    coefficients[:, who, who] = 1
    return _alone(game, coefficients, who)


def noise(game: Game, who: int, victim: int, size: float = 1.0) -> Attack:
    """Add noise of so many times one's usual distance from the base."""
    pairs = game.pairs.clone()
    pairs[:, who, who] += (size * _usual(game, who)) ** 2
    return Attack(replace(game, pairs=pairs), torch.arange(game.weights.shape[1]), who)


def wrong_cluster(game: Game, who: int, victim: int) -> Attack:
    """Say for one's own cluster what somebody says who knows another."""
    coefficients = _itself(game)
    coefficients[:, who] = coefficients[:, victim]
    return _alone(game, coefficients, who)


def garbage_outside(game: Game, who: int, victim: int) -> Attack:
    """Be honest at home, and say noise where others are."""
    away = game.weights.argmax(1) != who
    coefficients = _itself(game)
    coefficients[away, who, who] = 0
    spoilt = said(game, coefficients)
    pairs = spoilt.pairs.clone()
    pairs[away, who, who] += (5 * _usual(game, who)) ** 2
    return Attack(replace(spoilt, pairs=pairs), torch.arange(game.weights.shape[1]), who)


def copy(game: Game, who: int, victim: int) -> Attack:
    """Bring the victim's expert a second time."""
    return _twice(game, victim, 1, who)


def clones(game: Game, who: int, victim: int) -> Attack:
    """Bring one's own expert several times more."""
    return _twice(game, who, CLONES, who)


def _twice(game: Game, which: int, more: int, who: int) -> Attack:
    """Each of the new parts brings a weight of its own, and all are normalised."""
    coefficients = _itself(game)
    same = coefficients[:, which, None].expand(-1, more, -1)
    added = game.weights[:, which, None].expand(-1, more)
    weights = torch.cat([game.weights, added], 1)
    whole = weights / weights.sum(1, keepdim=True) * game.weights.sum(1, keepdim=True)
    owner = torch.tensor([*range(game.weights.shape[1]), *[which] * more])
    return Attack(said(game, torch.cat([coefficients, same], 1)).weighed(whole), owner, who)


def _usual(game: Game, who: int) -> Tensor:
    """The attacker's usual distance from the base, where it has any weight to speak of."""
    norms = game.pairs[:, who, who].sqrt()
    return norms[game.weights[:, who] > 0.5].median()


ATTACKS: dict[str, Callable[[Game, int, int], Attack]] = {
    "honest": honest,
    "copy": copy,
    "clones": clones,
    "exaggeration": exaggeration,
    "overshoot": overshoot,
    "noise": noise,
    "freeloader": freeloader,
    "wrong cluster": wrong_cluster,
    "garbage outside": garbage_outside,
}


def defended(
    attack: Attack,
    posterior: Tensor,
    cluster: Tensor,
    stratum: Tensor | None = None,
    factor: float = defence.CLIP,
) -> Game:
    """The game that is paid by: copies refused, answers clipped, each part on samples of its own cluster.

    `cluster` is that of each held-out sample: a part that was added has no sample of its own, and is measured
    by the others.
    """
    game = attack.game.weighed(defence.registered(posterior, attack.owner))
    pairs = defence.copies(defence.likeness(game))
    refused = {first if first == attack.late else later for first, later in pairs}
    clipped = defence.clip(game, cluster, stratum, factor)
    return defence.at_home(clipped, cluster, attack.owner, refused)


def pay(game: Game) -> Tensor:
    """Shares of the pool: linear in what is positive of the values."""
    values = shapley.shapley(game).mean(0).clamp(min=0)
    return values / values.sum().clamp(min=1e-300)


def best_mixture(game: Game, who: int, cluster: Tensor) -> tuple[float, Tensor]:
    """The most that a part could be paid for saying Σ_j c_j d_j at home, and these factors.

    Its score is 2 c·b - c·A c with A = E[1_home ⟨d_i, d_j⟩] and b = -E[1_home ⟨d_j, e_b⟩], so b·A⁻¹b at most.
    Honest parts that know their cluster exactly have it already; who has learnt little may gain by borrowing
    from others, and predicts its cluster better then.
    """
    home = (cluster == who).to(game.along.dtype)
    pairs = (home[:, None, None] * game.pairs).mean(0)
    along = -(home[:, None] * game.along).mean(0)
    factors = torch.linalg.lstsq(pairs, along).solution
    return float(along @ factors), factors


def revenue(shares: Tensor, who: int, experts: int) -> float:
    """What the attacker gets: its own part's and that of parts that were added."""
    return float(shares[who] + shares[experts:].sum())
