"""The plan for a person."""

from collections.abc import Mapping
from typing import Any


def sentences(plan: Mapping[str, Any]) -> str:
    """Lines that a person reads: data, device, each kind of job, strategies, and all of it."""
    data, device, total = plan["data"], plan["device"], plan["total"]
    samples = "samples unknown (set plan.samples)"
    if data["samples"]:
        whole, part = _bytes(data["bytes"]), _bytes(data["bytes_of_a_cluster"])
        samples = f"{data['samples']:,} samples, {whole}, {part} a cluster"
    lines = [f"data      {'x'.join(map(str, data['shape']))}; {samples}"]
    lines.append(
        f"device    {device['name']}: {device['gigabytes']:.3g} GB, {device['teraflops']:.3g} TFLOP/s at "
        f"{device['utilisation']:.0%} utilisation"
        + (f", {device['at_once']} jobs at once" if device["at_once"] > 1 else "")
    )
    for names, job in _alike(plan["jobs"]):
        lines += _job_lines(names, job)
    lines += ["sampling  GFLOP per velocity, TFLOP per sample"]
    lines += [
        f"  {name:12}{cost['flops'] / 1e9:10,.4g}{cost['flops_per_sample'] / 1e12:12,.4g}"
        for name, cost in plan["strategies"].items()
    ]
    lines.append(
        f"in all    {_count(total['parameters'])} parameters, {total['flops']:.3g} FLOPs, "
        f"{_hours(total['device_hours'])} of the device ({total['device_hours'] / 24:,.1f} days), "
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
    spread = f" on each of {job['devices']} devices ({job['parallel']})" if job["devices"] > 1 else ""
    besides = [f", {name} {_bytes(needed[name])}" for name in ("gathered", "teachers") if needed[name]]
    return [
        f"{names}: {_count(job['parameters'])} parameters, {job['tokens']} tokens, "
        f"{job['forward_flops_per_sample'] / 1e9:.4g} GFLOP forward per sample",
        f"  training  {job['steps']:,} steps of {job['batch']}: {job['flops']:.3g} FLOPs, "
        f"{_hours(job['hours'])}",
        f"  memory    {_bytes(needed['total'])}{spread}: weights {_bytes(needed['weights'])}, average "
        f"{_bytes(needed['average'])}, gradients {_bytes(needed['gradients'])}, optimiser "
        f"{_bytes(needed['optimiser'])}, activations {_bytes(needed['activations'])} "
        f"({_bytes(kept['kept'])} kept, {_bytes(kept['recomputed'])} recomputed){''.join(besides)}",
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


def _hours(value: float) -> str:
    return f"{value:,.1f} hours" if value >= 1 else f"{60 * value:,.1f} minutes"
