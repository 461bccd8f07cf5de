"""What a run will need before anything is spent: parameters, FLOPs, memory, bytes, hours."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from atoll.config import NetworkConfig, RouterConfig, RunConfig, TrainConfig, patches
from atoll.errors import ConfigError


class Device(NamedTuple):
    """A device by its data sheet."""

    gigabytes: float
    teraflops: float
    """Peak of dense bfloat16 matrix products, summed in float32."""


DEVICES = {
    "RTX-3090": Device(24, 71),
    "RTX-4090": Device(24, 165),
    "A10G": Device(24, 70),
    "L4": Device(24, 121),
    "A40": Device(48, 150),
    "L40S": Device(48, 362),
    "A100-40GB": Device(40, 312),
    "A100-80GB": Device(80, 312),
    "H100": Device(80, 989),
    "H200": Device(141, 989),
}
"""Vendors' figures without sparsity."""
UTILISATION = 0.4
"""Share of the peak that training reaches: what well-written transformers of these sizes do."""
USABLE = 0.92
"""Share of a device's memory that is left by driver, context and fragments."""

FREQUENCIES = 256
"""Of the embedding of the time."""
FULL, HALF = 4, 2
"""Bytes of a number."""


@dataclass(frozen=True)
class Network:
    """All that sizes depend on."""

    config: NetworkConfig
    shape: tuple[int, ...]
    kind: str = "none"
    classes: int = 0
    text: int = 0
    length: int = 0
    """Tokens of a text."""
    clusters: int = 0
    """Of a router; an expert has none."""
    steps: bool = False
    """Whether it is a flow map, which is told where a step ends."""

    @property
    def width(self) -> int:
        """Channels of a token."""
        return self.config.width

    @property
    def hidden(self) -> int:
        """Width of the hidden layer."""
        return int(self.width * self.config.mlp)

    @property
    def patch(self) -> int:
        """Values of a token."""
        return self.shape[0] * math.prod(self.config.patch_of(self.shape))

    @property
    def tokens(self) -> int:
        """Tokens of a sample; a router has one of its own."""
        grid = [
            size // step for size, step in zip(self.shape[1:], self.config.patch_of(self.shape), strict=True)
        ]
        return math.prod(grid) + (1 if self.clusters else 0)

    @property
    def cross(self) -> bool:
        """Whether blocks ask a text."""
        return self.kind == "text" and self.config.text == "cross"


def parameters(network: Network) -> int:
    """How many weights; a test holds it to the networks themselves."""
    w, shared = network.width, network.config.modulation == "shared"
    norms = 2 * (w // network.config.heads) if network.config.qk_norm else 0
    block = 4 * w * w + 4 * w + norms + 2 * w * network.hidden + network.hidden + w
    block += 6 * w if shared else 6 * w * w + 6 * w
    if network.cross:
        block += 4 * w * w + 4 * w + norms
    total = network.config.depth * block
    total += network.patch * w + w + FREQUENCIES * w + w + w * w + w
    total += 6 * w * w + 6 * w + 2 * w if shared else 2 * w * w + 2 * w
    total += FREQUENCIES * w + w + w * w + w if network.steps else 0
    if network.kind == "class":
        total += (network.classes + 1) * w
    elif network.kind == "text":
        total += network.text * w + w + (network.text if network.cross else 0)
    if network.clusters:
        return total + w + w * network.clusters + network.clusters
    return total + w * network.patch + network.patch


def forward_flops(network: Network) -> float:
    """Floating-point operations of one sample forward: two per multiplication, of matrix products only."""
    w, n, m = network.width, network.tokens, network.length
    shared = network.config.modulation == "shared"
    block = n * 2 * (4 * w * w + 2 * w * network.hidden) + 4 * n * n * w + (0 if shared else 12 * w * w)
    if network.cross:
        block += n * 4 * w * w + m * 4 * w * w + 4 * n * m * w
    total = network.config.depth * block + 2 * (FREQUENCIES * w + w * w) + (12 if shared else 4) * w * w
    total += 2 * n * network.patch * w + (2 * (FREQUENCIES * w + w * w) if network.steps else 0)
    if network.kind == "text":
        total += 2 * (m if network.cross else 1) * network.text * w
    return float(total + 2 * w * (network.clusters or n * network.patch))


STRATEGIES = ("ancestral", "top-1", "top-2", "sample-1", "nucleus-0.9", "full")
"""Of which `atoll plan` tells the cost; those by threshold cost what lies between one expert and all."""


def strategy_flops(name: str, expert: float, router: float, clusters: int) -> float:
    """FLOPs of one velocity of one sample, guidance apart (DDM Table 1: 334 for top-1, 2,490 for all eight).

    Ancestral sampling asks the router at most once in all, so it is left out there.
    """
    kind, _, number = name.partition("-")
    asked = {"full": clusters, "threshold": clusters, "top": int(number or 1) if kind == "top" else 1}
    asked["sample"] = int(number) if kind == "sample" else 1
    experts = min(asked.get(kind, 1), clusters)
    alone = clusters == 1 or kind in ("ancestral", "oracle")
    return experts * expert + (0.0 if alone else router)


def strategy_costs(config: RunConfig, found: Mapping[str, Any] | None = None) -> dict[str, dict[str, float]]:
    """What each strategy costs: FLOPs of one velocity, and of one whole sample as [sample] asks for it."""
    about, clusters = _about(config, found or {}), config.partition.clusters
    expert = sum(forward_flops(_network(config.expert_for(k), config, about)) for k in range(clusters))
    expert /= clusters
    router = forward_flops(_network(config.router, config, about)) if clusters > 1 else 0.0
    how = config.sample
    asked = how.steps * (2 if how.solver == "heun" else 1)
    guided = 1 + (
        how.guided[1] - how.guided[0] if how.guidance > 1 and config.condition.kind != "none" else 0
    )
    costs = {}
    for name in STRATEGIES if clusters > 1 else ("ancestral",):
        once = strategy_flops(name, expert, router, clusters)
        routed = once - strategy_flops(name, expert, 0.0, clusters)
        costs[name] = {"flops": once, "flops_per_sample": asked * (guided * (once - routed) + routed)}
    return costs


class Activations(NamedTuple):
    """Bytes that the forward pass of one batch leaves for the backward pass."""

    kept: float
    """Between the passes."""
    peak: float
    """At most, in the backward pass: with recomputation, one block's are there again."""


def activations(network: Network, batch: int, *, half: bool, recompute: bool) -> Activations:
    """What autograd keeps, tensor by tensor, with attention that keeps no matrix of all pairs."""
    w, n, m, heads = network.width, network.tokens, network.length, network.config.heads
    low = HALF if half else FULL
    # Inputs and outputs of both norms are float32; modulated ones, q, k, v, attended, projected, MLP are low.
    block = n * (4 * FULL * w + low * (8 * w + 2 * network.hidden) + FULL * (4 + heads)) + 8 * low * w
    if network.config.qk_norm:  # written out, as on a CPU; a fused kernel keeps less
        block += n * (4 * FULL * w + (3 if half else 1) * low * w + 2 * FULL * heads)
    if network.cross:
        block += n * (low * 3 * w + FULL * heads) + m * (2 * low * w + low)
        if network.config.qk_norm:
            block += (n + m) * (2 * FULL * w + low * w + FULL * heads)
    outside = n * (2 * FULL * w + low * w + (low + FULL) * network.patch + 2 * FULL)
    outside += FULL * (FREQUENCIES + 6 * w) + (m * (FULL * network.text + low * w) if network.cross else 0)
    copies, outside_copies = _copies(network) if half else (0, 0)
    one = batch * block + copies
    kept = batch * FULL * n * w if recompute else one
    everything = network.config.depth * kept + batch * outside + outside_copies
    return Activations(everything, everything + (one if recompute else 0))


def _copies(network: Network) -> tuple[int, int]:
    """Bytes of matrices cast to half precision, which stay until the backward pass: of a block, outside."""
    w, shared = network.width, network.config.modulation == "shared"
    block = 4 * w * w + 2 * w * network.hidden + (4 * w * w if network.cross else 0)
    block += 0 if shared else 6 * w * w
    # Layers whose inputs need no gradient, of patches and frequencies, do not keep theirs.
    outside = network.patch * w + w * w + (6 if shared else 2) * w * w + network.text * w
    return HALF * block, HALF * outside


class Memory(NamedTuple):
    """Bytes on each device."""

    weights: float
    average: float
    gradients: float
    optimiser: float
    activations: float

    @property
    def total(self) -> float:
        """All of it."""
        return sum(self)


def memory(network: Network, train: TrainConfig, *, devices: int = 1, half: bool = True) -> Memory:
    """What training needs on each of several devices that share one network (FSDP) and the batch."""
    count, size = parameters(network), FULL / devices
    rows = min(train.micro_batch or train.batch, -(-train.batch // devices))
    peak = activations(network, rows, half=half, recompute=train.recompute).peak
    moments = 2 * count
    if train.optimiser == "muon":
        w = network.width
        moments -= network.config.depth * (
            4 * w * w + 2 * w * network.hidden + (4 * w * w if network.cross else 0)
        )
    return Memory(count * size, count * size, count * size, moments * size, peak)


def what_would_fit(network: Network, train: TrainConfig, device: Device) -> str:
    """The least change with which training fits the device, or what is needed besides."""
    room = device.gigabytes * 1e9 * USABLE
    rows = train.micro_batch or train.batch
    smaller = [rows >> shift for shift in range(rows.bit_length()) if rows >> shift]
    for recompute in dict.fromkeys((train.recompute, True)):
        for size in smaller:
            change = {"micro_batch": size if size < train.batch else None, "recompute": recompute}
            if memory(network, train.model_copy(update=change)).total <= room:
                said = [f"micro_batch = {size}"] if size != rows else []
                said += ["recompute = true"] if recompute and not train.recompute else []
                return " and ".join(said)
        if not recompute and memory(network, train.model_copy(update={"recompute": True})).total <= room:
            return "recompute = true"
    frugal = train.model_copy(update={"recompute": True, "micro_batch": 1})
    for devices in (2, 4, 8, 16, 32, 64):
        if memory(network, frugal, devices=devices).total <= room:
            return f'{devices} such devices with torchrun and parallel = "fsdp"'
    return "a smaller network"


def plan(config: RunConfig, found: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The whole plan of a run; `found` is what is known of its data, if they are there already."""
    device = DEVICES.get(config.plan.gpu)
    if device is None:
        raise ConfigError(f"plan.gpu '{config.plan.gpu}' is not known; use one of {', '.join(DEVICES)}")
    about = _about(config, found or {})
    clusters = config.partition.clusters
    experts = [
        _job(_network(config.expert_for(k), config, about), config.expert_for(k), device)
        for k in range(clusters)
    ]
    jobs: dict[str, Any] = {f"expert {k}": job for k, job in enumerate(experts)}
    if clusters > 1:
        jobs["router"] = _job(_network(config.router, config, about), config.router, device)
    jobs |= _students(config, about, device)
    per_sample = math.prod(about["shape"]) * about["bytes_per_value"]
    if config.condition.kind == "text":
        per_sample += config.encode.text_tokens * about["text"] * HALF
    samples = about["samples"]
    return {
        "run": config.name,
        "data": {
            "shape": list(about["shape"]),
            "samples": samples,
            "bytes": None if samples is None else samples * per_sample,
            "bytes_of_a_cluster": None if samples is None else samples * per_sample / clusters,
        },
        "device": {"name": config.plan.gpu, **device._asdict(), "utilisation": UTILISATION},
        "jobs": jobs,
        "strategies": strategy_costs(config, found),
        "total": {
            "parameters": sum(job["parameters"] for job in jobs.values()),
            "flops": sum(job["flops"] for job in jobs.values()),
            "device_hours": sum(job["hours"] for job in jobs.values()),
            "disk_bytes": sum(job["disk_bytes"] for job in jobs.values()),
            "upload_bytes": sum(job["upload_bytes"] for job in jobs.values()),
        },
    }


def _about(config: RunConfig, found: Mapping[str, Any]) -> dict[str, Any]:
    """What is known of the data: measured where they are, else said in [plan], else read off [data]."""
    shape = found.get("shape") or config.plan.shape or _shape_of(config)
    if shape is None:
        raise ConfigError(
            "the shape of the samples is not known yet; set plan.shape, or `atoll prepare` first"
        )
    text = found.get("text") or {}
    latent = config.encode.autoencoder is not None or config.data.kind == "latent"
    return {
        "shape": tuple(shape),
        "samples": found.get("rows") or config.plan.samples,
        "classes": len(found.get("class_names") or ()) or config.plan.classes,
        "text": text.get("width", config.plan.text_width),
        "bytes_per_value": HALF if latent else 1,
    }


def _shape_of(config: RunConfig) -> tuple[int, ...] | None:
    if config.data.source == "fashion-5k" and config.encode.autoencoder is None:
        side = config.data.size or 28
        return (config.data.channels or 1, side, side)
    if config.data.size is None:
        return None
    if (
        config.encode.autoencoder is not None
    ):  # Stable Diffusion's and its kin: 4 channels, an eighth of a side
        return (4, config.data.size // 8, config.data.size // 8)
    return (config.data.channels or 3, config.data.size, config.data.size)


def _network(settings: NetworkConfig, config: RunConfig, about: Mapping[str, Any]) -> Network:
    shape = about["shape"]
    if not patches.fits(settings.patch_of(shape), shape):
        raise ConfigError(patches.misfit(settings.patch_of(shape), shape, "patch"))
    router = isinstance(settings, RouterConfig)
    kind = "none" if isinstance(settings, RouterConfig) and settings.blind else config.condition.kind
    return Network(
        settings,
        shape,
        kind,
        about["classes"],
        about["text"] if kind == "text" else 0,
        config.encode.text_tokens if kind == "text" else 0,
        config.partition.clusters if router else 0,
    )


def _students(config: RunConfig, about: Mapping[str, Any], device: Device) -> dict[str, Any]:
    """What distillation takes: the student's own passes, and those of its teachers."""
    own = config.student
    if own is None:
        return {}
    expert = forward_flops(_network(config.expert_for(0), config, about))
    network = _network(own, config, about)
    halves = 2 if own.guidance > 1 else 1
    asked = config.partition.clusters if own.teacher == "ensemble" else 1
    jobs = {"student": _job(network, own, device, expert * asked * halves)} if own.steps else {}
    few = own.few
    if few is not None:
        map_network = replace(network, steps=True)
        teacher = forward_flops(network)
        if few.teacher != "student":
            teacher = expert * halves * (config.partition.clusters if few.teacher == "ensemble" else 1)
        if few.method == "progressive":
            rounds = int(math.log2(few.grid // few.fewest))
            whole, extra = few.model_copy(update={"steps": few.steps * rounds}), 1.5 * teacher
        else:
            # two points of a difference for the share of samples that step; 16 solver steps for 8 pairs
            stepped = few.steps * (teacher + 2 * few.pairs * forward_flops(map_network))
            steps = few.steps + few.trajectories
            whole = few.model_copy(update={"steps": steps})
            extra = (stepped + few.trajectories * teacher * few.grid / 8) / steps
        jobs["few-step"] = _job(map_network, whole, device, extra)
    return jobs


def _job(network: Network, train: TrainConfig, device: Device, teachers: float = 0.0) -> dict[str, Any]:
    """What a training takes; `teachers` are FLOPs per sample of those who are only asked."""
    half = train.precision != "float32"
    count, forward = parameters(network), forward_flops(network)
    passes = 4 if train.recompute else 3
    flops = (passes * forward + teachers) * train.steps * train.batch
    needed = memory(network, train, half=half)
    rows = train.micro_batch or train.batch
    fits = needed.total <= device.gigabytes * 1e9 * USABLE
    state = FULL * count * 4
    milestones = train.steps // train.milestone_every if train.milestone_every else 0
    return {
        "parameters": count,
        "tokens": network.tokens,
        "steps": train.steps,
        "batch": train.batch,
        "forward_flops_per_sample": forward,
        "flops": flops,
        "teacher_flops": teachers * train.steps * train.batch,
        "memory_bytes": {**needed._asdict(), "total": needed.total},
        "activations_bytes": {
            "kept": activations(network, rows, half=half, recompute=False).peak,
            "recomputed": activations(network, rows, half=half, recompute=True).peak,
        },
        "fits": fits,
        "to_fit": "" if fits else what_would_fit(network, train, device),
        "hours": flops / (device.teraflops * 1e12 * UTILISATION) / 3600,
        "disk_bytes": state * (train.keep + 1 + milestones) + FULL * count,
        "upload_bytes": FULL * count,
    }


def sentences(found: Mapping[str, Any]) -> str:
    """The plan for a person."""
    data, device, total = found["data"], found["device"], found["total"]
    samples = "samples unknown (set plan.samples)"
    if data["samples"]:
        whole, part = _bytes(data["bytes"]), _bytes(data["bytes_of_a_cluster"])
        samples = f"{data['samples']:,} samples, {whole}, {part} a cluster"
    lines = [f"data      {'x'.join(map(str, data['shape']))}; {samples}"]
    lines.append(
        f"device    {device['name']}: {device['gigabytes']:g} GB, {device['teraflops']:g} TFLOP/s at "
        f"{device['utilisation']:.0%} utilisation"
    )
    for names, job in _alike(found["jobs"]):
        lines += _job_lines(names, job)
    lines += ["sampling  GFLOP per velocity, TFLOP per sample"]
    lines += [
        f"  {name:12}{cost['flops'] / 1e9:10,.4g}{cost['flops_per_sample'] / 1e12:12,.4g}"
        for name, cost in found["strategies"].items()
    ]
    lines.append(
        f"in all    {_count(total['parameters'])} parameters, {total['flops']:.3g} FLOPs, "
        f"{total['device_hours']:,.0f} device hours ({total['device_hours'] / 24:,.1f} days), "
        f"{_bytes(total['disk_bytes'])} on disk, {_bytes(total['upload_bytes'])} to move"
    )
    return "\n".join(lines)


def _alike(jobs: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """Jobs that need the same are told once."""
    groups: list[tuple[list[str], Any]] = []
    for name, job in jobs.items():
        if groups and groups[-1][1] == job:
            groups[-1][0].append(name)
        else:
            groups.append(([name], job))
    return [(f"{names[0]} to {names[-1]}" if names[1:] else names[0], job) for names, job in groups]


def _job_lines(names: str, job: Mapping[str, Any]) -> list[str]:
    needed, kept = job["memory_bytes"], job["activations_bytes"]
    return [
        f"{names}: {_count(job['parameters'])} parameters, {job['tokens']} tokens, "
        f"{job['forward_flops_per_sample'] / 1e9:.4g} GFLOP forward per sample",
        f"  training  {job['steps']:,} steps of {job['batch']}: {job['flops']:.3g} FLOPs, "
        f"{job['hours']:,.1f} hours",
        f"  memory    {_bytes(needed['total'])}: weights {_bytes(needed['weights'])}, average "
        f"{_bytes(needed['average'])}, gradients {_bytes(needed['gradients'])}, optimiser "
        f"{_bytes(needed['optimiser'])}, activations {_bytes(needed['activations'])} "
        f"({_bytes(kept['kept'])} kept, {_bytes(kept['recomputed'])} recomputed)",
        "  fits" if job["fits"] else f"  does NOT fit; it would with {job['to_fit']}",
        f"  disk      {_bytes(job['disk_bytes'])}; to hand on {_bytes(job['upload_bytes'])}",
    ]


def _bytes(value: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if value < 1000:
            return f"{value:.3g} {unit}"
        value /= 1000
    return f"{value:,.3g} TB"


def _count(value: float) -> str:
    return f"{value / 1e9:.2f} G" if value >= 1e9 else f"{value / 1e6:.1f} M"
