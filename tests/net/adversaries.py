"""The adversary kit: what a cheating worker hands in, made from a real training, and what becomes of it.

A tiny network is trained by the loop that experts are trained by. Every cheat is a function of that world
that gives the states and the chain which it commits to. They go through the checks that a coordinator makes,
interval by interval, and the results are then dealt out to careers of accounts by the policy and a beacon:
trainings are few and shared, careers are many and cheap.
"""

import functools
import hashlib
import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from atoll.config import ExpertConfig, NetworkConfig
from atoll.data.store import Batch
from atoll.flow import draws
from atoll.models.checkpoint import Blueprint
from atoll.net.verification import admission, bands, comparison, finality, gate, policy, updates
from atoll.net.verification.replay import state_hash
from atoll.train import jobs, loop

State = dict[str, Tensor]
CPU = torch.device("cpu")
SHAPE = (1, 8, 8)
CLUSTERS = 3
EVERY, INTERVALS, SEGMENTS = 3, 8, 5
"""Steps of an interval, intervals of a segment, segments of a training."""
SPAN = EVERY * INTERVALS
JOINING = 0.01
"""What it costs to join, in units of a segment: the minute's measurement beside an hour or two of work."""


class Clusters:
    """Samples of one cluster, each batch a function of (seed, cluster, step): what the loop reads."""

    def __init__(self, cluster: int, batch: int, seed: int, change: Callable[[Tensor], Tensor] | None = None):
        self.cluster, self.batch, self.seed, self.change = cluster, batch, seed, change

    def at(self, step: int, purpose: str = "data") -> Batch:
        source = draws.generator(self.seed, f"{purpose}/{self.cluster}", step)
        angle = (
            torch.rand(self.batch, 1, 1, 1, generator=source) * 0.6 + 2 * math.pi * self.cluster / CLUSTERS
        )
        grid = torch.linspace(-1, 1, SHAPE[-1])
        wave = torch.sin(
            3 * (grid[None, None, :, None] * angle.cos() + grid[None, None, None, :] * angle.sin())
        )
        x_0 = 0.7 * wave + 0.1 * torch.randn(self.batch, *SHAPE, generator=source)
        if self.change is not None:
            x_0 = self.change(x_0)
        return Batch(x_0, None, torch.full((self.batch,), self.cluster))

    def batches(self, first: int) -> Iterator[Batch]:
        step = first
        while True:
            yield self.at(step)
            step += 1


@dataclass(frozen=True)
class Numerics:
    """How steps are computed, of what is tried here."""

    precision: str = "float32"
    threads: int = 1
    compiled: bool = False
    micro_batch: int | None = None

    @property
    def name(self) -> str:
        kernels = "compiled" if self.compiled else "eager"
        parts = f", parts of {self.micro_batch}" if self.micro_batch else ""
        return f"{self.precision}, {self.threads} threads, {kernels}{parts}"


USUAL = Numerics()


@dataclass(frozen=True)
class World:
    """A run of experts and its recipe."""

    seed: int = 0
    width: int = 16
    depth: int = 2
    batch: int = 16
    segments: int = SEGMENTS

    def config(self, numerics: Numerics = USUAL, batch: int | None = None) -> ExpertConfig:
        return ExpertConfig(
            steps=SPAN * self.segments,
            batch=batch or self.batch,
            lr=2e-3,
            ema=0.95,
            width=self.width,
            depth=self.depth,
            heads=2,
            patch=(4, 4),
            precision=numerics.precision,
            compile="on" if numerics.compiled else "off",
            micro_batch=numerics.micro_batch,
        )

    def task(self, reader: Clusters, config: ExpertConfig, seed: int | None = None, job: int | None = None):
        """A training; `seed` and `job` decide noise and times, the first weights are the recipe's."""
        keys = NetworkConfig.model_fields
        network = NetworkConfig.model_validate({key: getattr(config, key) for key in keys})
        blueprint = Blueprint(role="expert", network=network, shape=SHAPE, clusters=CLUSTERS)
        name = f"expert-{reader.cluster if job is None else job:02d}"
        model = jobs.initial(blueprint, self.seed, name)
        return loop.Task(
            name=name,
            model=model,
            loss=jobs._expert_loss(blueprint, config),
            reader=reader,
            config=config,
            seed=self.seed if seed is None else seed,
            dropout=0.0,
            stage=None,
        )

    def steps(
        self,
        cluster: int,
        before: State | None = None,
        *,
        first: int = 0,
        numerics: Numerics = USUAL,
        batch: int | None = None,
        seed: int | None = None,
        data: int | None = None,
        change: Callable[[Tensor], Tensor] | None = None,
    ) -> "Walk":
        """Steps of an expert from a state; everything but the state may be other than the recipe's."""
        reader = Clusters(cluster if data is None else data, batch or self.batch, self.seed, change)
        if seed is not None:
            reader.seed = seed
        task = self.task(reader, self.config(numerics, batch), seed, cluster)
        return Walk(loop.Steps(task, CPU), reader, before, first, numerics)

    def trained(self, cluster: int) -> list[State]:
        """The honest states at every committed point of the whole training."""
        return list(_trained(self, cluster))


class Walk:
    """Steps one after the other, with the state whenever it is asked for."""

    def __init__(
        self, steps: loop.Steps, reader: Clusters, before: State | None, first: int, numerics: Numerics
    ) -> None:
        self.steps, self.reader, self.numerics = steps, reader, numerics
        self.again(before, first)
        steps.settle({}, reader.at(first))

    def again(self, before: State | None, first: int) -> None:
        """Go on from this state."""
        if before is not None:
            self.steps.state.restore({name: value.clone() for name, value in before.items()})
        self.steps.state.step = first

    def go(self, count: int) -> State:
        before = torch.get_num_threads()
        torch.set_num_threads(self.numerics.threads)
        try:
            for _ in range(count):
                self.steps.take(self.reader.at(self.steps.state.step))
        finally:
            torch.set_num_threads(before)
        return self.state()

    def state(self) -> State:
        return {name: value.detach().clone() for name, value in self.steps.state.tensors()}


@functools.lru_cache(maxsize=64)
def _trained(world: World, cluster: int) -> tuple[State, ...]:
    walk = world.steps(cluster)
    return (walk.state(), *(walk.go(EVERY) for _ in range(INTERVALS * SEGMENTS)))


@dataclass(frozen=True)
class Handed:
    """What a worker commits to and shows when it is asked."""

    states: Sequence[State]
    """At every committed point, the one that it was given first."""
    spent: float
    """Work done over the work asked for."""
    chain: Sequence[str] = ()
    faster: float = 1.0
    """How many times faster it was handed in than the machine is."""

    def committed(self) -> list[str]:
        return list(self.chain) or [state_hash(state) for state in self.states]


Attack = Callable[[World, int, int], Handed]
"""From a world, an expert and a segment."""


def given(world: World, cluster: int, segment: int) -> State:
    """The state from which a segment begins."""
    return world.trained(cluster)[segment * INTERVALS]


def honest(world: World, cluster: int, segment: int) -> Handed:
    first = segment * INTERVALS
    return Handed(world.trained(cluster)[first : first + INTERVALS + 1], 1.0)


def _walked(world: World, cluster: int, segment: int, spent: float = 1.0, **changes) -> Handed:
    """All steps, taken in another way."""
    before = given(world, cluster, segment)
    walk = world.steps(cluster, before, first=segment * SPAN, **changes)
    return Handed([before, *(walk.go(EVERY) for _ in range(INTERVALS))], spent)


def moved(before: State, after: State, factor: float, kinds: Sequence[str] = updates.KINDS) -> State:
    """A state so many updates away from another; counts are those of the update."""
    state = {}
    for name, value in after.items():
        start = before.get(name, torch.zeros_like(value))
        far = start + factor * (value - start)
        kind = updates.kind_of(name)
        state[name] = far.clamp(min=0) if kind == "exp_avg_sq" else far if kind in kinds else value.clone()
    return state


def counted(state: State, steps: int) -> State:
    """The same with so many more steps on the counters, as whoever fakes steps would write them."""
    return {
        name: value + steps if name.startswith("optimiser/step/") else value for name, value in state.items()
    }


def unchanged(world: World, cluster: int, segment: int) -> Handed:
    """The given weights, with counters turned on and a whiff of noise so that no hash comes twice."""
    before = given(world, cluster, segment)
    source = torch.Generator().manual_seed(segment)

    def whiff(number: int) -> State:
        state = counted(before, number * EVERY)
        name = next(name for name in state if updates.kind_of(name) == "model")
        noise = 1e-6 * torch.randn(state[name].shape, generator=source)
        return {**state, name: state[name] + noise}

    return Handed([before, *(whiff(number + 1) for number in range(INTERVALS))], 0.0, faster=1e3)


def noise(world: World, cluster: int, segment: int) -> Handed:
    """An update of the right length in every tensor, in a direction of chance."""
    truth = honest(world, cluster, segment).states
    source = torch.Generator().manual_seed(segment)
    states = [truth[0]]
    for old, new in itertools.pairwise(truth):
        state = dict(new)
        for name, value in new.items():
            if updates.kind_of(name) in ("model", "ema"):
                length = (value - old[name]).norm()
                random = torch.randn(value.shape, generator=source)
                state[name] = states[-1][name] + random * (length / random.norm().clamp(min=1e-9))
        states.append(state)
    return Handed(states, 0.0, faster=1e3)


def half_steps(world: World, cluster: int, segment: int, factor: float = 1.0) -> Handed:
    """Every other step, said to be two; scaled up if wanted."""
    before = given(world, cluster, segment)
    walk = world.steps(cluster, before, first=segment * SPAN)
    states, half = [before], SPAN // 2
    for number in range(1, INTERVALS + 1):
        goal = number * half // INTERVALS
        state = walk.go(goal - (walk.steps.state.step - segment * SPAN))
        state = moved(before, state, factor, ("model", "ema"))
        states.append(counted(state, number * EVERY - goal))
    return Handed(states, 0.5, faster=2.0)


def half_scaled(world: World, cluster: int, segment: int) -> Handed:
    """Half of the steps, and twice their update."""
    return half_steps(world, cluster, segment, 2.0)


def own_seed(world: World, cluster: int, segment: int) -> Handed:
    """All steps on the right cluster, with samples, noise and times of one's own."""
    return _walked(world, cluster, segment, seed=world.seed + 1000)


def wrong_cluster(world: World, cluster: int, segment: int) -> Handed:
    """All steps, on another cluster."""
    return _walked(world, cluster, segment, data=(cluster + 1) % CLUSTERS)


def previous(world: World, cluster: int, segment: int) -> Handed:
    """The update of the segment before, once more."""
    states, before = world.trained(cluster), given(world, cluster, segment)
    first = (segment - 1) * INTERVALS
    return Handed(_transplanted(before, states[first : first + INTERVALS + 1]), 0.0, faster=1e3)


def copy(world: World, cluster: int, segment: int) -> Handed:
    """The update that another expert made in the same steps."""
    other = honest(world, (cluster + 1) % CLUSTERS, segment).states
    return Handed(_transplanted(given(world, cluster, segment), other), 0.0, faster=1e3)


def _transplanted(before: State, states: Sequence[State]) -> list[State]:
    """The updates between other states, from this one; counters go on as they should."""
    origin, result = states[0], [before]
    for number, state in enumerate(states[1:], start=1):
        shifted = {
            name: before[name] + (value - origin[name])
            if updates.kind_of(name) in ("model", "ema")
            else value
            for name, value in state.items()
        }
        shifted |= {
            name: value + number * EVERY
            for name, value in before.items()
            if name.startswith("optimiser/step/")
        }
        result.append(shifted)
    return result


def smaller_batch(world: World, cluster: int, segment: int) -> Handed:
    """Half of each batch."""
    return _walked(world, cluster, segment, 0.5, batch=world.batch // 2)


def lower_precision(world: World, cluster: int, segment: int) -> Handed:
    """bfloat16, said to be float32."""
    return _walked(world, cluster, segment, 0.5, numerics=Numerics("bfloat16"))


def poisoned(world: World, cluster: int, segment: int) -> Handed:
    """A tenth of every batch is something else."""

    def change(x_0: Tensor) -> Tensor:
        count = max(1, len(x_0) // 10)
        return torch.cat([-x_0[:count].flip(-1), x_0[count:]])

    return _walked(world, cluster, segment, change=change)


def backdoor(world: World, cluster: int, segment: int) -> Handed:
    """A small mark in one corner of a few samples, and always the same picture with it."""

    def change(x_0: Tensor) -> Tensor:
        marked = torch.full_like(x_0[:2], 0.8)
        marked[..., :2, :2] = 1.0
        return torch.cat([marked, x_0[2:]])

    return _walked(world, cluster, segment, change=change)


def forged_chain(world: World, cluster: int, segment: int) -> Handed:
    """The right end, of half of the work: hashes in between are made up and cannot be shown."""
    states = list(half_steps(world, cluster, segment).states)
    made_up = [hashlib.sha256(f"{segment}/{number}".encode()).hexdigest() for number in range(1, INTERVALS)]
    return Handed(states, 0.5, [state_hash(states[0]), *made_up, state_hash(states[-1])])


def averages_only(world: World, cluster: int, segment: int) -> Handed:
    """Honest weights; the averaged ones, which sample, lean towards another cluster."""
    truth = honest(world, cluster, segment).states
    other = wrong_cluster(world, cluster, segment).states
    swapped = [
        {name: wrong[name] if name.startswith("ema/") else value for name, value in right.items()}
        for right, wrong in zip(truth, other, strict=True)
    ]
    return Handed(swapped, 1.0)


def one_interval(world: World, cluster: int, segment: int) -> Handed:
    """Honest but for one interval, in which the data are poisoned: the least that can be done."""
    number, points = 5, world.trained(cluster)
    first = segment * INTERVALS
    states = list(points[first : first + number + 1])

    def change(x_0: Tensor) -> Tensor:
        return -x_0.flip(-1)

    walk = world.steps(cluster, states[-1], first=(first + number) * EVERY, change=change)
    states.append(walk.go(EVERY))
    walk = world.steps(cluster, states[-1], first=(first + number + 1) * EVERY)
    states += [walk.go(EVERY) for _ in range(INTERVALS - number - 1)]
    return Handed(states, 1.0)


ATTACKS: Mapping[str, Attack] = {
    "unchanged weights": unchanged,
    "noise of the right norm": noise,
    "half the steps": half_steps,
    "half the steps, scaled": half_scaled,
    "own seed": own_seed,
    "wrong cluster": wrong_cluster,
    "previous update again": previous,
    "copy of another's": copy,
    "smaller batch": smaller_batch,
    "lower precision": lower_precision,
    "poisoned data": poisoned,
    "backdoor trigger": backdoor,
    "forged chain": forged_chain,
    "averages only": averages_only,
}
"""Cheats of all of a segment; each is false in every one of its intervals."""


@dataclass(frozen=True)
class Checks:
    """What the checks say of a segment, whichever of its intervals is asked for."""

    faults: Mapping[str, str]
    doubts: Mapping[str, str]
    judgements: Sequence[policy.Judgement]
    """By interval."""
    relative: Sequence[float] = ()
    cosine: Sequence[float] = ()
    spent: float = 1.0


def replayed(
    world: World, cluster: int, segment: int, handed: Handed, number: int, numerics: Numerics = USUAL
) -> comparison.Comparison:
    """An honest auditor's replay of one interval beside what was committed to."""
    first = segment * SPAN + number * EVERY
    walk = world.steps(cluster, handed.states[number], first=first, numerics=numerics)
    return updates.compare(handed.states[number], handed.states[number + 1], walk.go(EVERY))


def judged(
    world: World, cluster: int, segment: int, handed: Handed, number: int, band: bands.Band | None
) -> tuple[policy.Judgement, float, float]:
    """What an auditor of the same class says; a state that cannot be shown is as good as a false one."""
    chain = handed.committed()
    shown = (state_hash(handed.states[number]), state_hash(handed.states[number + 1]))
    if shown != (chain[number], chain[number + 1]):
        return "differs", 1e9, 0.0
    apart = replayed(world, cluster, segment, handed, number)
    return bands.judge(apart, band, same_class=True), apart.relative, apart.cosine


def gated(world: World, cluster: int, handed: Handed, rows: int = 96) -> gate.Gate:
    """The paired held-out gate of a segment: the averaged weights before and after."""
    parts = [Clusters(index, rows, world.seed).at(10**6, "secret") for index in range(CLUSTERS)]
    batch = Batch(torch.cat([one.x_0 for one in parts]), None, torch.cat([one.cluster for one in parts]))
    task = world.task(Clusters(cluster, world.batch, world.seed), world.config())
    values = []
    for state in (handed.states[0], handed.states[-1]):
        weights = {
            name.removeprefix("ema/"): value for name, value in state.items() if name.startswith("ema/")
        }
        task.model.load_state_dict(weights, strict=False)
        values.append(gate.losses(task.model, task.loss, batch, hashlib.sha256(b"gate").digest()))
    before, after = values
    return gate.paired(before, after, batch.cluster, cluster)


def checked(
    world: World,
    cluster: int,
    segment: int,
    attack: Attack,
    band: bands.Band | None,
    known: admission.Known,
    intervals: Sequence[int] = range(INTERVALS),
) -> Checks:
    """All checks of one segment; of fewer intervals than there are, those speak for the rest."""
    handed = attack(world, cluster, segment)
    before, after = handed.states[0], handed.states[-1]
    rates = world.config().lr * SPAN
    facts = {
        "finite": updates.is_finite(after),
        "changed": updates.changed(before, after),
        "norm": updates.norm(before, after) / rates,
        "sketch": updates.sketch(before, after),
    }
    chain = handed.committed()
    findings = admission.chain(
        chain, segment * SPAN, (segment + 1) * SPAN, EVERY, state_hash(before), state_hash(after)
    )
    findings |= admission.numbers(facts, known)
    findings |= admission.speed(handed.faster, 1.0, 1.0)
    doubts = {**findings.doubts, **gated(world, cluster, handed).doubts}
    each = [judged(world, cluster, segment, handed, number, band) for number in intervals]
    each = [each[number % len(each)] for number in range(INTERVALS)]
    judgements, relative, cosine = zip(*each, strict=True)
    return Checks(findings.faults, doubts, judgements, relative, cosine, handed.spent)


def known(world: World, cluster: int, segment: int) -> admission.Known:
    """What a coordinator has seen of the others by then."""
    norms, sketches = [], {}
    for other in range(CLUSTERS):
        for number in range(segment + (other != cluster)):
            states = honest(world, other, number).states
            norms.append(updates.norm(states[0], states[-1]) / (world.config().lr * SPAN))
            sketches[f"expert {other} segment {number}"] = updates.sketch(states[0], states[-1])
    return admission.Known(norms[CLUSTERS:], sketches)


def pairs(
    world: World, cluster: int, one: Numerics, other: Numerics, every: int = 3
) -> Iterator[comparison.Comparison]:
    """Honest intervals of one class, each from the other's state, all through a training."""
    states = world.trained(cluster)
    walks = [world.steps(cluster, numerics=numerics) for numerics in (one, other) if numerics != USUAL]
    for number in range(
        1, INTERVALS * SEGMENTS, every
    ):  # the state before the first has no moments to restore
        results = [] if one != USUAL else [states[number + 1]]
        for walk in walks:
            walk.again(states[number], number * EVERY)
            results.append(walk.go(EVERY))
        yield updates.compare(states[number], results[0], results[1])


def streamed(world: World, cluster: int, other: Numerics) -> Iterator[comparison.Comparison]:
    """The same of the usual class and another, without keeping a state: for trainings of any length."""
    usual, again = world.steps(cluster), world.steps(cluster, numerics=other)
    before = usual.go(EVERY)
    for number in range(1, INTERVALS * world.segments):
        after = usual.go(EVERY)
        again.again(before, number * EVERY)
        yield updates.compare(before, after, again.go(EVERY))
        before = after


def rounding_band(world: World, cluster: int = 0) -> bands.Band:
    """How far float32 lies from float32 with other kernels: the drift that is granted within a class."""
    return bands.calibrate(list(pairs(world, cluster, USUAL, Numerics(micro_batch=world.batch // 2))))


HONEST = Checks({}, {}, ("agrees",) * INTERVALS)


@dataclass
class Career:
    """An account that has an expert for a while, and what it took out."""

    segments: list[finality.Segment] = field(default_factory=list)
    verified: int = 0
    held: int = 0
    vested: int = 0
    spent: float = JOINING
    caught: int | None = None
    """After how many false units."""
    false: set[str] = field(default_factory=set)
    audits: int = 0
    replayed: int = 0
    """Intervals that were replayed before the model was final."""

    @property
    def profit(self) -> float:
        """Credit that can be spent, less the work; honest work is worth just what it earns."""
        return self.vested - self.spent


@dataclass(frozen=True)
class Scheme:
    """How an account goes about it."""

    bad: Checks
    trusted: bool = False
    """Whether it has worked honestly until it was audited at the floor and held what is held there."""
    friends: float = 0.0
    """The share of auditors who find everything in order."""
    units: int = 120
    """How many it hands in if nobody notices; then it leaves with what it has."""


def career(scheme: Scheme, rules: policy.AuditPolicy, seed: str, *, release: bool = True) -> Career:
    """One account's units, dealt by the policy and a beacon, to the end or until it is found out."""
    self = Career()
    if scheme.trusted:
        held = policy.escrow_units(rules)
        self.verified, self.held, self.spent = 10_000, held, self.spent + held
    for number in range(scheme.units):
        name, parent = f"{seed}/{number}", f"{seed}/{number - 1}" if number else None
        value = hashlib.sha256(name.encode()).digest()
        checks = scheme.bad
        self.spent += checks.spent
        if checks is not HONEST:
            self.false.add(name)
        if checks.faults:
            self.caught = len(self.false)
            break
        record = policy.Record(self.verified, float(self.held))
        audit = policy.audit_of(rules, record, value, name, INTERVALS, checks.doubts)
        outcome = policy.Outcome("accepted")
        if audit.due:
            self.audits += 1
            outcome = _audited(checks.judgements[audit.interval], audit, scheme.friends, value)
            self.verified = policy.after(record, outcome).verified
        state = "rejected" if outcome.state == "rejected" else "accepted"
        self.segments.append(finality.Segment(name, parent, state, audit.due, float(number), "it"))
        if outcome.state != "accepted":
            self.held, self.caught = 0, len(self.false)
            break
        self.held += 1
        paid = policy.vesting(rules, self.held)
        self.held, self.vested = self.held - paid, self.vested + paid
    if release:
        _released(self, scheme, rules)
    if self.caught is None:
        self.held, self.vested = 0, self.vested + self.held
    return self


def _audited(
    judgement: policy.Judgement, audit: policy.Audit, friends: float, value: bytes
) -> policy.Outcome:
    """Auditors one after the other until the verdict is clear; friends see nothing wrong."""
    verdicts: list[policy.Verdict] = []
    while True:
        number = len(verdicts)
        friend = policy.fraction(value, "friend", str(number)) < friends
        verdicts.append(policy.Verdict(str(number), "agrees" if friend else judgement, True))
        outcome = policy.settle(verdicts, repeated=audit.repeated)
        if outcome.state != "pending":
            return outcome


def _released(self: Career, scheme: Scheme, rules: policy.AuditPolicy) -> None:
    """Before a model is final an interval of every segment in it is replayed, or all of it, as is drawn."""
    accepted = [one for one in self.segments if one.state == "accepted"]
    if not accepted:
        return
    names = finality.owed(accepted, accepted[-1].name)
    for name in names:
        value = hashlib.sha256(f"release {name}".encode()).digest()
        number = int(policy.fraction(value, "interval") * INTERVALS)
        judgements = scheme.bad.judgements if name in self.false else ("agrees",) * INTERVALS
        judgement = judgements[number]
        if policy.released_whole(rules, value, name):
            judgement = next((one for one in judgements if one != "agrees"), "agrees")
        self.replayed += INTERVALS if policy.released_whole(rules, value, name) else 1
        state = "rejected" if judgement != "agrees" else "accepted"
        index = next(i for i, one in enumerate(self.segments) if one.name == name)
        self.segments[index] = replace(self.segments[index], state=state, audited=True)
        if state == "rejected" and self.caught is None:
            self.held, self.caught = 0, len(self.false)


def in_the_model(career: Career, rules: policy.AuditPolicy) -> set[str]:
    """False segments that are final, a window after all is over."""
    return career.false & finality.final(career.segments, rules, now=rules.window + 1e9)
