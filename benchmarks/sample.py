"""Sampling from many experts against one model, against the papers' plain loop, and against diffusers.

Networks have random weights of the demo's size: what is measured is time and memory, not pictures.
"""

import argparse
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

from atoll.config import NetworkConfig
from atoll.flow import solver
from atoll.models import checkpoint
from atoll.models.dit import DiT
from atoll.models.router import Router
from atoll.sampling.ensemble import Ensemble
from atoll.sampling.roster import Roster
from atoll.sampling.sampler import Sampler
from benchmarks._memory import peak_memory

SHAPE = (4, 32, 32)
CLASSES = 1000
"""As diffusers' pipeline takes for granted."""
EXPERT = NetworkConfig(width=192, depth=6, heads=6, patch=(4, 4))
ROUTER = NetworkConfig(width=96, depth=2, heads=4, patch=(4, 4))
"""Of 9 % of an expert's FLOPs, as in the paper (26 of 308)."""
BATCH, STEPS, FEW = 64, 50, 4
MANY = 8 * BATCH
"""So many that each of eight experts has a batch of its own."""


def awake(network: nn.Module, seed: int) -> nn.Module:
    """Random weights everywhere: zero-initialised layers would make every expert and choice alike."""
    g = torch.Generator().manual_seed(seed)
    for parameter in network.parameters():
        parameter.data = torch.randn(parameter.shape, generator=g) * 0.1
    return network.eval().requires_grad_(False)


def ensemble(clusters: int) -> Sampler:
    experts = [awake(DiT(EXPERT, SHAPE), k) for k in range(clusters)]
    router = awake(Router(ROUTER, SHAPE, clusters), 99) if clusters > 1 else None
    return Sampler(Ensemble(experts, torch.ones(clusters) / clusters, SHAPE, router))


def naive(sampler: Sampler, steps: int) -> Tensor:
    """The plain loop: every expert on everything at every step, then the weights (DDM's blog)."""
    x_t, one = torch.randn(BATCH, *SHAPE, generator=torch.Generator().manual_seed(0)), sampler.ensemble

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
        repeats=3,
    )


def students() -> dict[str, float]:
    """Seconds of a whole batch: the monolith, the student that took its place, and the one of few steps."""
    one, dense = ensemble(1), Sampler(Ensemble([awake(DiT(EXPERT, SHAPE), 1)], torch.ones(1), SHAPE))
    flow_map = awake(DiT(EXPERT, SHAPE, steps=True), 2)
    few = Sampler(Ensemble([flow_map], torch.ones(1), SHAPE, maps=True))
    return seconds(
        {
            "monolith, 50 steps": (lambda: one.sample(BATCH, steps=STEPS), 1),
            "student, 50 steps": (lambda: dense.sample(BATCH, steps=STEPS), 1),
            "few-step, 4 steps": (lambda: few.sample(BATCH, steps=4), 1),
            "few-step, 1 step": (lambda: few.sample(BATCH, steps=1), 1),
        },
        repeats=6,
    )


def growth() -> dict[str, float]:
    actions: dict[str, tuple[Callable[[], Any], int]] = {}
    for clusters in (2, 8, 32):
        some = ensemble(clusters)
        for strategy in ("ancestral", "top-1"):
            draw = partial(some.sample, 2 * MANY, steps=2, strategy=strategy, batch=BATCH // 2)
            actions[f"{strategy}, K = {clusters}"] = draw, 2 * MANY * 2
    return seconds(actions, repeats=3)


def against_diffusers() -> dict[str, float]:
    """Diffusers' DiT pipeline with guidance, its decoder reduced to almost nothing."""
    from diffusers import AutoencoderTiny, DDIMScheduler, DiTPipeline, DiTTransformer2DModel

    expert = awake(DiT(EXPERT, SHAPE, "class", CLASSES), 0)
    ours = Sampler(Ensemble([expert], torch.ones(1), SHAPE, classes=CLASSES))
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
    pipeline = DiTPipeline(awake(transformer, 0), decoder, DDIMScheduler())
    pipeline.set_progress_bar_config(disable=True)
    labels = [index % CLASSES for index in range(BATCH)]
    return seconds(
        {
            "atoll": (lambda: ours.sample(BATCH, label=labels, steps=10, guidance=2.0), 10 * BATCH),
            "diffusers": (
                lambda: pipeline(labels, guidance_scale=2.0, num_inference_steps=10, output_type="np"),
                10 * BATCH,
            ),
        },
        repeats=4,
    )


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


def measure() -> dict[str, Any]:
    times, more, peer, peak = strategies(), growth(), against_diffusers(), memory()
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
            "diffusers' DiT pipeline with guidance": peer["diffusers"] / peer["atoll"],
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
            "threads": torch.get_num_threads(),
        },
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--peak", nargs=2, metavar=("FOLDER", "CLUSTERS"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.peak:
        peak_of_resident(Path(options.peak[0]), int(options.peak[1]))
        return
    found = measure()
    if options.json:
        print(json.dumps(found))
        return
    for what, ratio in found["ratios"].items():
        print(f"{what:56}{ratio:6.2f}")


if __name__ == "__main__":
    main()
