"""Sampling from many experts against one model, against the papers' plain loop, and against diffusers.

Networks have random weights of the demo's size: what is measured is time and memory, not pictures. Each is
measured in float32 and in the arithmetic that this machine is fastest in; diffusers' pipeline too, and the
best of each counts. `--compile` adds compiled blocks of ours. On a GPU (`--device auto`) batches are larger
and the device is waited for around what is timed. `--small` only shows that everything runs.
"""

import argparse
import itertools
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from atoll import devices
from atoll.config import NetworkConfig, SampleConfig
from atoll.flow import solver
from atoll.models import checkpoint
from atoll.models.dit import DiT, product
from atoll.models.router import Router
from atoll.sampling import arithmetic
from atoll.sampling.arithmetic import PLAIN, Arithmetic
from atoll.sampling.ensemble import Ensemble
from atoll.sampling.roster import Roster
from atoll.sampling.sampler import Sampler
from benchmarks import _card, _pictures
from benchmarks._memory import peak_memory
from benchmarks._shown import show

SHAPE = (4, 32, 32)
CLASSES = 1000
"""As diffusers' pipeline takes for granted."""
EXPERT = NetworkConfig(width=192, depth=6, heads=6, patch=(4, 4))
WIDE = NetworkConfig(width=384, depth=6, heads=6, patch=(4, 4))
ROUTER = NetworkConfig(width=96, depth=2, heads=4, patch=(4, 4))
"""Of 9 % of an expert's FLOPs, as in the paper (26 of 308)."""
BATCH, STEPS, FEW, REPEATS = 64, 50, 4, 3
MANY = 8 * BATCH
"""So many that each of eight experts has a batch of its own."""
DEVICE = torch.device("cpu")


def resize(small: bool) -> None:
    """Sizes for a GPU, or for a trial that only shows that everything runs."""
    global BATCH, STEPS, MANY, REPEATS
    if small:
        BATCH, STEPS, REPEATS = 2, 2, 1
    elif DEVICE.type == "cuda":
        BATCH = 256
    MANY = 8 * BATCH


def fastest() -> list[str]:
    """float32, and what this machine is fastest in, if that is something else."""
    return list(dict.fromkeys(["float32", devices.arithmetic("auto", DEVICE)]))


def awake(network: nn.Module, seed: int) -> nn.Module:
    """Random weights everywhere: zero-initialised layers would make every expert and choice alike."""
    g = torch.Generator().manual_seed(seed)
    for parameter in network.parameters():
        parameter.data = torch.randn(parameter.shape, generator=g) * 0.1
    return network.to(DEVICE).eval().requires_grad_(False)


def ensemble(clusters: int, expert: NetworkConfig = EXPERT, arithmetic: Arithmetic = PLAIN) -> Sampler:
    experts = [arithmetic.prepared(awake(DiT(expert, SHAPE), k)) for k in range(clusters)]
    router = arithmetic.prepared(awake(Router(ROUTER, SHAPE, clusters), 99)) if clusters > 1 else None
    priors = torch.full((clusters,), 1 / clusters, device=DEVICE)
    return Sampler(Ensemble(experts, priors, SHAPE, router, product=product(experts[0], 1)))


def naive(sampler: Sampler, steps: int) -> Tensor:
    """The plain loop: every expert on everything at every step, then the weights (DDM's blog)."""
    one = sampler.ensemble
    x_t = torch.randn(BATCH, *SHAPE, generator=torch.Generator().manual_seed(0)).to(DEVICE)

    def velocity(x_t: Tensor, t: Tensor) -> Tensor:
        weights = one.posterior(x_t, t)
        top = nn.functional.one_hot(weights.argmax(1), len(one.experts)).float()
        every = [one.experts[k](x_t, t) for k in range(len(one.experts))]
        return sum((top[:, k, None, None, None] * v for k, v in enumerate(every)), torch.zeros_like(x_t))

    return solver.integrate(velocity, x_t, steps)


def seconds(actions: dict[str, tuple[Callable[[], Any], int]], repeats: int) -> dict[str, float]:
    """The best time of each action per sample and step, repeats interleaved so that noise hits all alike."""
    best = dict.fromkeys(actions, float("inf"))
    with torch.inference_mode():
        for _ in range(repeats):
            for name, (action, made) in actions.items():
                since = time.perf_counter()
                action()
                if DEVICE.type == "cuda":
                    torch.cuda.synchronize()
                best[name] = min(best[name], (time.perf_counter() - since) / made)
    return best


def strategies() -> dict[str, float]:
    one, eight = ensemble(1), ensemble(8)
    actions: dict[str, tuple[Callable[[], Any], int]] = {}
    for num, steps in ((BATCH, STEPS), (MANY, FEW)):
        actions[f"monolith, {num}"] = partial(one.sample, num, steps=steps), num * steps
        for name in ("ancestral", "top-1"):
            actions[f"{name}, {num}"] = partial(eight.sample, num, steps=steps, strategy=name), num * steps
    return seconds(
        {
            **actions,
            "full": (lambda: eight.sample(BATCH, steps=FEW, strategy="full"), BATCH * FEW),
            "naive": (lambda: naive(eight, FEW), BATCH * FEW),
        },
        repeats=REPEATS,
    )


def precisions() -> dict[str, float]:
    """Seconds per sample and step of one network and of top-1 from eight, width 384, in each arithmetic."""
    actions: dict[str, tuple[Callable[[], Any], int]] = {}
    for name in fastest():
        one, eight = (ensemble(clusters, WIDE, Arithmetic(getattr(torch, name))) for clusters in (1, 8))
        actions[f"one model, {name}"] = partial(one.sample, BATCH, steps=FEW), BATCH * FEW
        top = partial(eight.sample, MANY, steps=FEW, strategy="top-1", batch=BATCH)
        actions[f"top-1 from eight, {name}"] = top, MANY * FEW
    return seconds(actions, REPEATS)


def students() -> dict[str, float]:
    """Seconds of a whole batch: the monolith, the student that took its place, and the one of few steps."""
    one, certain = ensemble(1), torch.ones(1, device=DEVICE)
    student = awake(DiT(EXPERT, SHAPE), 1)
    dense = Sampler(Ensemble([student], certain, SHAPE, product=product(student, 1)))
    flow_map = awake(DiT(EXPERT, SHAPE, steps=True), 2)
    few = Sampler(Ensemble([flow_map], certain, SHAPE, maps=True, product=product(flow_map, 1)))
    return seconds(
        {
            "monolith, 50 steps": (lambda: one.sample(BATCH, steps=STEPS), 1),
            "student, 50 steps": (lambda: dense.sample(BATCH, steps=STEPS), 1),
            "few-step, 4 steps": (lambda: few.sample(BATCH, steps=4), 1),
            "few-step, 1 step": (lambda: few.sample(BATCH, steps=1), 1),
        },
        repeats=2 * REPEATS,
    )


def growth() -> dict[str, float]:
    actions: dict[str, tuple[Callable[[], Any], int]] = {}
    for clusters in (2, 8, 32):
        some = ensemble(clusters)
        for strategy in ("ancestral", "top-1"):
            draw = partial(some.sample, 2 * MANY, steps=2, strategy=strategy, batch=BATCH // 2)
            actions[f"{strategy}, K = {clusters}"] = draw, 2 * MANY * 2
    return seconds(actions, repeats=REPEATS)


def against_diffusers(compiled: bool) -> dict[str, float]:
    """Diffusers' DiT pipeline with guidance, its decoder almost nothing, each in every arithmetic.

    Each in a process of its own, in turns: what one tells the C library about memory is not the other's.
    """
    best: dict[str, float] = {}
    whose = ("diffusers", "atoll", "atoll compiled") if compiled else ("diffusers", "atoll")
    for _ in range(REPEATS):
        for name, who in itertools.product(fastest(), whose):
            command = [
                sys.executable,
                "-m",
                "benchmarks.sample",
                "--device",
                str(DEVICE),
                "--guided",
                who,
                name,
            ]
            command += ["--small"] * (STEPS < 10)
            done = subprocess.run(command, capture_output=True, text=True, check=True)
            key, found = f"{who}, {name}", float(done.stdout.split()[-1])
            best[key] = min(found, best.get(key, found))
    return best


def guided(who: str, name: str) -> None:
    """Print the seconds of one contender per guided sample and step, best of two after one to get warm."""
    labels, steps = [index % CLASSES for index in range(BATCH)], min(10, STEPS)
    if who == "diffusers":
        pipeline = diffusers_pipeline(getattr(torch, name))
        draw = partial(pipeline, labels, guidance_scale=2.0, num_inference_steps=steps, output_type="np")
    else:
        settings = SampleConfig(precision=name, compile="on" if who.endswith("compiled") else "off")
        chosen = arithmetic.choose(settings, DEVICE)
        expert = chosen.prepared(awake(DiT(EXPERT, SHAPE, "class", CLASSES), 0))
        certain, size = torch.ones(1, device=DEVICE), product(expert, 1)
        ours = Sampler(Ensemble([expert], certain, SHAPE, classes=CLASSES, product=size))
        draw = partial(ours.sample, BATCH, label=labels, steps=steps, guidance=2.0)
    draw()
    print(seconds({who: (draw, steps * BATCH)}, repeats=2)[who])


def best_of(times: dict[str, float], who: str) -> float:
    """The best time of one contender, in whatever arithmetic."""
    return min(value for name, value in times.items() if name.startswith(who))


def diffusers_pipeline(dtype: torch.dtype) -> Any:
    from diffusers import AutoencoderTiny, DDIMScheduler, DiTPipeline, DiTTransformer2DModel

    transformer = DiTTransformer2DModel(
        num_attention_heads=EXPERT.heads,
        attention_head_dim=EXPERT.width // EXPERT.heads,
        in_channels=4,
        out_channels=4,
        num_layers=EXPERT.depth,
        sample_size=32,
        patch_size=4,
        num_embeds_ada_norm=CLASSES,
    )
    decoder = AutoencoderTiny(
        encoder_block_out_channels=(4, 4),
        decoder_block_out_channels=(4, 4),
        num_encoder_blocks=(1, 1),
        num_decoder_blocks=(1, 1),
        latent_channels=4,
    )
    pipeline = DiTPipeline(awake(transformer, 0), decoder, DDIMScheduler()).to(DEVICE, dtype)
    pipeline.set_progress_bar_config(disable=True)
    return pipeline


LARGE = NetworkConfig(width=512, depth=8, heads=8, patch=(4, 4))


def write_large(folder: Path, clusters: int) -> None:
    blueprint = checkpoint.Blueprint(role="expert", network=LARGE, shape=SHAPE)
    for k in range(clusters):
        (folder / f"{k}").mkdir()
        network = blueprint.build()
        checkpoint.write_tensors(folder / f"{k}" / "weights.safetensors", dict(network.state_dict()))
        (folder / f"{k}" / "config.json").write_text(json.dumps(blueprint.model_dump(mode="json")))


def peak_of_resident(folder: Path, clusters: int) -> None:
    """Print by how many bytes sampling raises this process's peak memory."""
    base = peak_memory()

    def loader(k: int) -> Callable[[], nn.Module]:
        files = folder / f"{k}" / "weights.safetensors", folder / f"{k}" / "config.json"
        return lambda: checkpoint.load(*files)[0]

    roster = Roster([loader(k) for k in range(clusters)], resident=1)
    sampler = Sampler(Ensemble(roster, torch.ones(clusters) / clusters, SHAPE))
    sampler.sample(16, steps=2, batch=4, strategy="ancestral")
    print(peak_memory() - base)


def memory() -> dict[str, float]:
    with tempfile.TemporaryDirectory() as folder:
        write_large(Path(folder), 16)
        found = {}
        for clusters in (1, 8, 16):
            command = [sys.executable, "-m", "benchmarks.sample", "--peak", folder, str(clusters)]
            done = subprocess.run(command, capture_output=True, text=True, check=True)
            found[f"K = {clusters}"] = float(done.stdout)
    return found


def measure(compiled: bool) -> dict[str, Any]:
    times, more, peer, peak = strategies(), growth(), against_diffusers(compiled), memory()
    wide, fast = precisions(), fastest()[-1]
    one, both = students(), ("ancestral", "top-1")
    return {
        "benchmark": "sample",
        "ratios": {
            **{
                f"one model, {name} from eight, {num} samples": times[f"monolith, {num}"]
                / times[f"{name}, {num}"]
                for num in (BATCH, MANY)
                for name in both
            },
            "one model, full from eight": times[f"monolith, {BATCH}"] / times["full"],
            "one model, its student": one["monolith, 50 steps"] / one["student, 50 steps"],
            "a student in 50 steps, few-step in 4": one["student, 50 steps"] / one["few-step, 4 steps"],
            "a student in 50 steps, few-step in 1": one["student, 50 steps"] / one["few-step, 1 step"],
            "the papers' plain loop, top-1 from eight": times["naive"] / times[f"top-1, {BATCH}"],
            "diffusers' DiT pipeline with guidance, each at its best": best_of(peer, "diffusers")
            / best_of(peer, "atoll"),
            "diffusers' DiT pipeline with guidance, float32": peer["diffusers, float32"]
            / peer["atoll, float32"],
            **{
                f"{what} of width 384 in float32, in {fast}": wide[f"{what}, float32"]
                / wide[f"{what}, {fast}"]
                for what in ("one model", "top-1 from eight")
                if fast != "float32"
            },
            **{
                f"itself with 2 experts, {name} from 32": more[f"{name}, K = 2"] / more[f"{name}, K = 32"]
                for name in both
            },
            "one expert's memory, one resident of eight": peak["K = 1"] / peak["K = 8"],
            "one resident of eight, of sixteen, in memory": peak["K = 8"] / peak["K = 16"],
        },
        "detail": {
            "seconds per sample and step, batch 64": times,
            "seconds per sample and step by K, 1,024 samples, batch 32": more,
            "students, seconds of a batch": one,
            "against diffusers, seconds per guided sample and step": peer,
            "what bounds it": "matrix products; both do the same ones",
            "bytes of peak memory above the start": peak,
            "seconds per sample and step of width 384": wide,
            "threads": torch.get_num_threads(),
            "device": str(DEVICE),
        },
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--peak", nargs=2, metavar=("FOLDER", "CLUSTERS"), help=argparse.SUPPRESS)
    parser.add_argument("--guided", nargs=2, metavar=("WHO", "PRECISION"), help=argparse.SUPPRESS)
    parser.add_argument("--device", default="cpu", help="cpu, cuda, or auto for the best one here")
    parser.add_argument("--compile", action="store_true", help="compiled blocks of ours as well")
    parser.add_argument("--small", action="store_true", help="only show that everything runs")
    options = parser.parse_args()
    global DEVICE
    DEVICE = devices.pick(options.device)
    resize(options.small)
    if options.guided:
        guided(*options.guided)
        return
    if options.peak:
        peak_of_resident(Path(options.peak[0]), int(options.peak[1]))
        return
    found = measure(options.compile)
    if DEVICE.type == "cuda":  # and networks as large as eight of them can be on the card
        pictures = _pictures.measure(DEVICE, _pictures.network_for(_card.free_memory(DEVICE)))
        found |= {part: {**found[part], **pictures[part]} for part in ("ratios", "detail")}
    show(found, options.json)


if __name__ == "__main__":
    main()
