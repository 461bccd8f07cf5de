"""The sums over all jobs of a run."""

import math
from pathlib import Path
from typing import Any

from atoll import threads
from atoll.config import Facts, NetworkConfig, RunConfig
from atoll.models import costs
from atoll.models.costs import FULL, HALF
from atoll.plan.distillation import Trained, trained
from atoll.plan.fitting import memory_of, parallel_of, what_would_fit
from atoll.plan.known import UNKNOWN, About, about_data, network_of
from atoll.plan.sheets import Device, device_named
from atoll.plan.strategies import strategy_costs
from atoll.runs import Run, graph


def plan(config: RunConfig, facts: Facts = UNKNOWN) -> dict[str, Any]:
    """The whole plan of a run, from what is known of its data."""
    about, clusters = about_data(config, facts), config.partition.clusters
    device, devices = device_named(config.plan.gpu, clusters), max(1, round(config.launch.gpus))
    trainings, shared = graph.trainings(config), beside_experts(config)
    places = {name: device if name in shared else device._replace(at_once=1) for name in trainings}
    jobs = {
        name: _job(job, places[name], devices)
        for name, settings in trainings.items()
        if (job := trained(settings, config, about)) is not None
    }
    hours = [job["hours"] / places[name].at_once for name, job in jobs.items()]
    return {
        "run": config.name,
        "data": _data(config, about),
        "device": {"name": config.plan.gpu, **device._asdict()},
        "jobs": jobs,
        "strategies": strategy_costs(config, facts),
        "total": {
            "parameters": sum(job["parameters"] for job in jobs.values()),
            "flops": sum(job["flops"] for job in jobs.values()),
            "device_hours": devices * sum(hours),
            "disk_bytes": sum(job["disk_bytes"] for job in jobs.values()),
            "upload_bytes": sum(job["upload_bytes"] for job in jobs.values()),
        },
    }


def _data(config: RunConfig, about: About) -> dict[str, Any]:
    """What the samples take at rest."""
    per_sample = math.prod(about.shape) * about.bytes_per_value
    if config.condition.kind == "text":
        per_sample += config.encode.text_tokens * about.text * HALF
    samples = about.samples
    whole = None if samples is None else samples * per_sample
    return {
        "shape": list(about.shape),
        "samples": samples,
        "bytes": whole,
        "bytes_of_a_cluster": None if whole is None else whole / config.partition.clusters,
    }


def useful_threads(config: RunConfig, settings: NetworkConfig, batch: int, facts: Facts = UNKNOWN) -> int:
    """CPU threads that pay for a network of this run and so many samples at once."""
    network = network_of(settings, config, about_data(config, facts))
    return threads.useful(costs.product(network, batch))


def _job(job: Trained, device: Device, devices: int) -> dict[str, Any]:
    """What a training takes on each of its devices, and how long."""
    network, train, teachers = job
    count, forward = costs.learnt(network), costs.forward_flops(network)
    own_flops = costs.training_flops(network, recompute=train.recompute)
    flops = (own_flops + teachers.flops) * train.steps * train.batch
    needed = memory_of(network, train, device, teachers, devices)
    own = -(-train.batch // devices)
    rows = min(train.micro_batch or own, own)
    half = device.half if train.precision == "auto" else train.precision != "float32"
    fits = needed.total <= device.room
    state = FULL * count * 4
    milestones = train.steps // train.milestone_every if train.milestone_every else 0
    rate = device.rate(costs.product(network, rows)) * devices
    return {
        "parameters": count,
        "tokens": network.tokens,
        "steps": train.steps,
        "batch": train.batch,
        "devices": devices,
        "parallel": parallel_of(network, train, device) if devices > 1 else None,
        "forward_flops_per_sample": forward,
        "flops": flops,
        "teacher_flops": teachers.flops * train.steps * train.batch,
        "memory_bytes": {**needed._asdict(), "total": needed.total},
        "activations_bytes": {
            what: costs.activations(network, rows, half=half, recompute=on, pairs=device.cores > 0).peak
            for what, on in (("kept", False), ("recomputed", True))
        },
        "fits": fits,
        "to_fit": "" if fits else what_would_fit(network, train, device, teachers, devices),
        "hours": flops / rate / 3600,
        "disk_bytes": state * (train.keep + 1 + milestones) + FULL * count,
        "upload_bytes": FULL * count,
    }


def beside_experts(config: RunConfig) -> frozenset[str]:
    """The trainings that share machines with those of which every cluster has one: they can run together."""
    stages, before = graph.made(Run(Path(config.name), config)), dict[str, set[str]]()
    jobs = [one for one in stages if one.kind.training is not None]
    for one in stages:
        earlier = [{each.kind.name, *before[each.kind.name]} for each in one.inputs]
        before[one.kind.name] = before.get(one.kind.name, set()).union(*earlier)
    several = {one.kind.name for one in jobs if one.kind.count is not None}
    return frozenset(
        one.name
        for one in jobs
        if one.kind.count is not None
        or any(one.kind.name not in before[name] and name not in before[one.kind.name] for name in several)
    )
