"""Training speed: the loop against diffusers' DiT at its best, and against the plain loop of reference code.

Every contender lives in a process of its own, since allocator, threads and compiled code are a process's;
they take a few steps in turn, and the best of each counts. All in the precision in which this machine
multiplies matrices fastest, except the plain loop, which is float32 as the papers' reference code ships it.
On a GPU the network is as large as the card trains, contenders come one after the other, and memory, the
seconds to compile and the share of the data sheet's peak are reported too.
"""

import argparse
import contextlib
import copy
import json
import os
import sys
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from benchmarks._race import SIZES, Size, Worker, fastest, race
from benchmarks._shown import show

Step = Callable[[], object]


def network(size: Size, activation: str) -> Any:
    from atoll.config import NetworkConfig

    return NetworkConfig(
        width=size.width,
        depth=size.depth,
        heads=size.heads,
        patch=(size.patch, size.patch),
        activation=activation,
    )


def atoll_step(size: Size, precision: str, compiled: bool) -> Step:
    """The loop as it is: everything between two batches."""
    import torch

    from atoll.config import TrainConfig
    from atoll.data.store import Batch
    from atoll.flow import draws, path
    from atoll.models import conditions
    from atoll.models.dit import DiT
    from atoll.runs import Stage
    from atoll.train import hardware, loop
    from atoll.train.window import Window

    def loss(model: Any, batch: Batch, drawn: draws.TrainingDraws) -> torch.Tensor:
        assert batch.label is not None
        told = conditions.hide(batch.label, drawn.dropped, size.classes)
        predicted = model(path.point(batch.x_0, drawn.noise, drawn.t), drawn.t, told)
        return (predicted.float() - path.velocity(batch.x_0, drawn.noise)).square().flatten(1).mean(1)

    config = TrainConfig(batch=size.batch, precision=precision)
    model = DiT(network(size, "gelu"), size.shape, "class", size.classes)
    task = loop.Task("bench", model, loss, None, config, 0, 0.1, Stage(None))
    steps = loop.Steps(task, torch.device(size.device))
    if compiled:
        hardware.compile_blocks(steps.model)
    window = Window(0, task.ranks, task.name, config.lr)

    def step() -> None:
        x_0, label = data(size)
        window.add(steps.take(Batch(x_0, label, label)))
        if len(window.taken) == config.log_every:
            window.check()
            window._open(steps.state.step)

    return step


def diffusers_step(size: Size, precision: str, compiled: bool) -> Step:
    """Diffusers' DiT in a good loop: fused AdamW, foreach average, no waiting for the loss."""
    import torch
    from diffusers import DiTTransformer2DModel

    model: Any = DiTTransformer2DModel(
        num_attention_heads=size.heads,
        attention_head_dim=size.width // size.heads,
        in_channels=size.shape[0],
        out_channels=size.shape[0],
        num_layers=size.depth,
        sample_size=size.shape[1],
        patch_size=size.patch,
        num_embeds_ada_norm=size.classes,
    ).to(size.device)
    called = torch.compile(model) if compiled else model
    parameters = list(model.parameters())
    optimiser = torch.optim.AdamW(parameters, lr=1e-4, fused=True)
    average = [value.detach().clone() for value in parameters]

    def step() -> None:
        x_0, label = data(size)
        noise, t = torch.randn_like(x_0), torch.rand(size.batch, device=size.device)
        with cast(precision, size.device):
            predicted = called(
                x_0.lerp(noise, t.view(-1, 1, 1, 1)), timestep=1000 * t, class_labels=label
            ).sample
        loss = (predicted.float() - (noise - x_0)).square().mean()
        torch.autograd.backward(loss)
        torch.nn.utils.clip_grad_norm_(parameters, 1.0, foreach=True)
        optimiser.step()
        optimiser.zero_grad(set_to_none=True)
        torch._foreach_lerp_(average, [value.detach() for value in parameters], 1e-4)

    return step


def plain_step(size: Size, precision: str, compiled: bool) -> Step:
    """DiT's train.py: tanh-GELU, AdamW as it comes, average weight by weight, the loss read each step."""
    import torch

    from atoll.models.dit import DiT

    model = DiT(network(size, "gelu-tanh"), size.shape, "class", size.classes).to(size.device)
    averaged = copy.deepcopy(model)
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-4)
    total = 0.0

    def step() -> None:
        nonlocal total
        x_0, label = data(size)
        noise, t = torch.randn_like(x_0), torch.rand(size.batch, device=size.device)
        predicted = model(x_0.lerp(noise, t.view(-1, 1, 1, 1)), t, label)
        loss = (predicted - (noise - x_0)).square().mean()
        optimiser.zero_grad()
        torch.autograd.backward(loss)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        with torch.no_grad():
            for average, value in zip(averaged.parameters(), model.parameters(), strict=True):
                average.mul_(0.9999).add_(value, alpha=1e-4)
        total += loss.item()

    return step


CONTENDERS = {"atoll": atoll_step, "diffusers": diffusers_step, "plain": plain_step}


def data(size: Size) -> Any:
    import torch

    x_0 = torch.randn(size.batch, *size.shape, device=size.device)
    return x_0, torch.randint(size.classes, (size.batch,), device=size.device)


def cast(precision: str, device: str) -> contextlib.AbstractContextManager[Any]:
    import torch

    if precision == "float32":
        return contextlib.nullcontext()
    return torch.autocast(device.partition(":")[0], dtype=getattr(torch, precision))


def work(name: str, size: Size, precision: str, compiled: bool) -> None:
    """A contender: a line in, so many steps, the best one's seconds out; `peak` measures matrix products."""
    import torch

    from benchmarks import _card

    device = torch.device(size.device)
    torch.set_num_threads(size.threads)
    torch.manual_seed(0)
    step = CONTENDERS[name](size, precision, compiled) if name != "peak" else None
    for line in sys.stdin:
        if step is None:
            print(json.dumps(_card.peak(line.strip(), device) / 1e9), flush=True)
        else:
            best = min(_card.seconds(step, device) for _ in range(int(line)))
            print(json.dumps({"seconds": best, "bytes": _card.peak_memory(device)}), flush=True)


def flops(size: Size) -> float:
    """Of one sample, forward and backward, in matrix products."""
    from atoll.models import costs

    return 3 * costs.forward_flops(costs.Network(network(size, "gelu"), size.shape, "class", size.classes))


def of_the_card(device: Any) -> Size:
    """The largest network that the card trains, on latents."""
    from atoll import devices
    from benchmarks import _card

    half = devices.arithmetic("auto", device) != "float32"
    one = _card.sized(_card.free_memory(device), half=half)
    made = one.network
    patch = made.patch_of(_card.LATENT)[0]
    return Size(
        *(made.width, made.depth, made.heads, patch, _card.LATENT, len(os.sched_getaffinity(0))),
        batch=one.batch,
        classes=_card.CLASSES,
        device=str(device),
    )


def measure_on_a_card(device: Any, rounds: int, compiled: bool) -> dict[str, Any]:
    """On a GPU: speed against diffusers, the plain loop and both peaks; memory against the plan."""
    import torch

    from atoll import devices
    from atoll.config import TrainConfig
    from atoll.models import costs
    from benchmarks import _card

    size, best = of_the_card(device), devices.arithmetic("auto", device)
    contenders = {"plain float32": ("plain", "float32", False)}
    for name in ("atoll", "diffusers"):
        for way in ("eager", "compiled") if compiled else ("eager",):
            contenders[f"{name} {way}"] = (name, best, way == "compiled")
    finished = race(size, contenders, rounds, 10)
    ours, theirs = (fastest(finished, name) for name in ("atoll", "diffusers"))
    achieved = finished[ours].rate * flops(size)
    product, sheet = _card.peak(best, device), _card.sheet(torch.cuda.get_device_name(device))
    counted = costs.Network(network(size, "gelu"), size.shape, "class", size.classes)
    planned = costs.memory(counted, TrainConfig(batch=size.batch), half=best != "float32").total
    ratios = {
        f"diffusers' DiT, same loop, its best setting ({best})": finished[ours].rate / finished[theirs].rate
    }
    if "plain float32" in finished:
        ratios["the plain float32 loop"] = finished[ours].rate / finished["plain float32"].rate
    return {
        "benchmark": "train",
        "ratios": ratios,
        "detail": {
            "card": torch.cuda.get_device_name(device),
            "what": asdict(size),
            "precision": best,
            "samples per second": {label: finish.rate for label, finish in finished.items()},
            "seconds to compile": {
                label: finish.compile_seconds for label, finish in finished.items() if "compiled" in label
            },
            "TFLOP/s achieved": achieved / 1e12,
            "share of the data sheet's peak (MFU)": None if sheet is None else achieved / sheet,
            "share of a measured product": achieved / product,
            "GB taken": {label: finish.bytes / 1e9 for label, finish in finished.items()},
            "GB planned": planned / 1e9,
            "taken over planned": finished[ours].bytes / planned,
        },
    }


def measure(rounds: int, compiled: bool) -> dict[str, Any]:
    meter = Worker("peak", SIZES["middle"])
    peaks = {precision: meter.ask(precision) for precision in ("float32", "bfloat16")}
    best = max(peaks, key=lambda precision: peaks[precision])
    contenders = {"plain float32": ("plain", "float32", False)}
    for name in ("atoll", "diffusers"):
        contenders[f"{name} eager"] = (name, best, False)
        if compiled:
            contenders[f"{name} compiled"] = (name, best, True)
    finished = race(SIZES["middle"], contenders, rounds, 2)
    middle = {label: finish.rate for label, finish in finished.items()}
    peaks[best] = max(peaks[best], meter.ask(best))
    meter.close()
    small = {name: (name, "float32", False) for name in ("atoll", "plain")}
    demo = {label: finish.rate for label, finish in race(SIZES["demo"], small, 4 * rounds, 10).items()}
    ours, theirs = (middle[fastest(finished, name)] for name in ("atoll", "diffusers"))
    achieved = ours * flops(SIZES["middle"]) / 1e9
    bfloat16_pays = peaks["bfloat16"] > peaks["float32"]
    return {
        "benchmark": "train",
        "ratios": {
            f"diffusers' DiT, same loop, its best setting ({best})": ours / theirs,
            "the plain float32 loop of reference code": ours / middle["plain float32"],
            "the plain loop at demo size, one thread": demo["atoll"] / demo["plain"],
        },
        "detail": {
            "samples per second, width 384, depth 6, 256 tokens, batch 16": middle,
            "samples per second, width 96, depth 4, 49 tokens, batch 16": demo,
            "threads": SIZES["middle"].threads,
            "GFLOP/s of matrix products": peaks,
            "precision": best,
            "what was found": (
                "bfloat16 pays here"
                if bfloat16_pays
                else "bfloat16 does not pay here: all train in float32, also the plain loop's rivals"
            ),
            "GFLOP per sample": flops(SIZES["middle"]) / 1e9,
            "GFLOP/s achieved": achieved,
            "share of the matrix peak": achieved / peaks[best],
        },
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--device", default="cpu", help="auto takes a GPU where there is one")
    parser.add_argument("--rounds", type=int, default=6, help="how often each contender is asked")
    parser.add_argument("--eager", action="store_true", help="leave out torch.compile, which takes minutes")
    parser.add_argument("--worker", nargs=4, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        name, size, precision, compiled = options.worker
        tree = json.loads(size)
        work(name, Size(**{**tree, "shape": tuple(tree["shape"])}), precision, compiled == "1")
        return
    from atoll import devices

    device = devices.pick(options.device, "--device")
    if device.type == "cuda":
        found = measure_on_a_card(device, options.rounds, not options.eager)
    else:
        found = measure(options.rounds, not options.eager)
    show(found, options.json)


if __name__ == "__main__":
    main()
