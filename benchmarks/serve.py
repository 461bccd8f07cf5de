"""A server under many clients: against itself one request at a time, a plain route, and no server at all.

Networks have random weights, of the demo's size and of width 384, eight experts and a router. The peer is
what people write first: a FastAPI route around a diffusers pipeline of the same size. All servers are
processes of their own and are asked over HTTP; what runs in process runs here. `--small` only shows that
everything runs.
"""

import argparse
import asyncio
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import torch

import atoll
from atoll import threads
from atoll.config import NetworkConfig, RunConfig
from atoll.models import checkpoint
from atoll.runs import Run, write_json
from atoll.runs.records import ExpertContents, PartitionContents, RouterContents

CLUSTERS = 8


class Size(NamedTuple):
    """One size of ensemble, and how much is asked of it."""

    expert: NetworkConfig
    router: NetworkConfig
    shape: tuple[int, int, int]
    steps: int
    clients: int = 64
    lone: int = 40
    """Requests that are asked alone."""
    many: int = 512
    """Samples of one large request."""


SIZES = {
    "demo": Size(
        NetworkConfig(width=96, depth=4, heads=4, patch=(4, 4)),
        NetworkConfig(width=64, depth=2, heads=4, patch=(4, 4)),
        (1, 28, 28),
        steps=50,
    ),
    "width 384": Size(
        NetworkConfig(width=384, depth=6, heads=6, patch=(4, 4)),
        NetworkConfig(width=96, depth=2, heads=4, patch=(4, 4)),
        (4, 32, 32),
        steps=8,
        lone=20,
    ),
}
SMALL = {"lone": 2, "many": 8, "clients": 4, "steps": 2}


def write_run(folder: Path, size: Size) -> None:
    """A finished run of random networks."""
    config = RunConfig.model_validate(
        {
            "name": folder.name,
            "data": {"source": "nothing"},
            "partition": {"clusters": CLUSTERS},
            "sample": {"steps": size.steps, "precision": "float32"},
        }
    )
    run = Run(folder, config)
    write_json(folder / "resolved.json", config.model_dump(mode="json"))
    channels = size.shape[0]
    contents = PartitionContents(
        kind="image" if channels == 1 else "latent",
        shape=size.shape,
        dtype="uint8" if channels == 1 else "float16",
        mean=(127.5,) * channels,
        std=(127.5,) * channels,
        group=500,
        method="features",
        features="pixels",
        classes=0,
        clusters=CLUSTERS,
        sizes=(10,) * CLUSTERS,
        priors=(1 / CLUSTERS,) * CLUSTERS,
        rows=10 * CLUSTERS,
    )
    run.partition.path.mkdir(parents=True)
    run.partition.finish({}, [], contents)
    for k in range(CLUSTERS):
        _write_network(run.expert(k), "expert", size.expert, size.shape, k)
    _write_network(run.router, "router", size.router, size.shape, 99)


def _write_network(stage: Any, role: str, network: NetworkConfig, shape: tuple[int, ...], seed: int) -> None:
    blueprint = checkpoint.Blueprint.model_validate(
        {"role": role, "network": network, "shape": shape, "clusters": CLUSTERS}
    )
    source = torch.Generator().manual_seed(seed)
    state = blueprint.build().state_dict()
    stage.path.mkdir(parents=True)
    tensors = {name: torch.randn(value.shape, generator=source) * 0.05 for name, value in state.items()}
    checkpoint.write_tensors(stage.path / checkpoint.WEIGHTS, tensors)
    write_json(stage.path / checkpoint.CONFIG, blueprint.model_dump(mode="json"))
    contents = ExpertContents if role == "expert" else RouterContents
    stage.finish({}, [checkpoint.WEIGHTS, checkpoint.CONFIG], contents(steps=1, rows=10))


@contextmanager
def server(*command: str) -> Iterator[str]:
    """A server in a process of its own, by its address; it says a JSON line when it is ready."""
    process = subprocess.Popen([sys.executable, "-m", *command], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        yield json.loads(process.stdout.readline())["address"]
    finally:
        process.terminate()
        process.wait()
        process.stdout.close()


async def crowd(address: str, path: str, body: dict[str, Any], moments: list[float], at_once: int) -> float:
    """Seconds from the first question to the last answer of clients that ask at these moments."""
    room = asyncio.Semaphore(at_once)
    async with httpx.AsyncClient(base_url=address, timeout=600, limits=httpx.Limits()) as client:

        async def ask(number: int, moment: float) -> None:
            await asyncio.sleep(moment)
            async with room:
                answer = await client.post(path, json={**body, "seed": number})
                answer.raise_for_status()

        since = time.perf_counter()
        await asyncio.gather(*(ask(number, moment) for number, moment in enumerate(moments)))
        return time.perf_counter() - since


def rate(address: str, path: str, body: dict[str, Any], clients: int, within: float, at_once: int) -> float:
    """Pictures per second."""
    source = random.Random(0)
    moments = sorted(source.uniform(0, within) for _ in range(clients))
    return clients / asyncio.run(crowd(address, path, body, moments, at_once))


def percentile(seconds: list[float], share: float) -> float:
    ordered = sorted(seconds)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def timed(action: Callable[[], Any]) -> float:
    since = time.perf_counter()
    action()
    return time.perf_counter() - since


def measure_size(name: str, size: Size) -> tuple[dict[str, float], dict[str, Any]]:
    """Ratios and numbers of one size."""
    picture = {"format": "png" if size.shape[0] == 1 else "npz", "steps": size.steps}
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        write_run(run, size)
        with server("atoll", "serve", str(run), "--port", "0", "--json") as address:
            client = httpx.Client(base_url=address, timeout=600)
            local = atoll.load(run)
            alone, in_process = lone(client, local, picture, size)
            serial = size.clients * percentile(alone, 0.5)
            facts: dict[str, Any] = {
                "lone request, p95 s": percentile(alone, 0.95),
                "lone request, p50 s": percentile(alone, 0.5),
                "in process, p95 s": percentile(in_process, 0.95),
                "in process, p50 s": percentile(in_process, 0.5),
            }
            facts |= bounds(local, size)
            best = {"many at once": 0.0, "one at a time": 0.0}
            for _ in range(2):
                for label, at_once in (("many at once", size.clients), ("one at a time", 1)):
                    pictures = rate(address, "/v1/samples", picture, size.clients, 0.1 * serial, at_once)
                    best[label] = max(best[label], pictures)
            body = {"num": size.many, "format": "npz", "steps": size.steps}
            large = [
                (
                    timed(lambda: client.post("/v1/samples", json=body).raise_for_status()),
                    timed(lambda: local.sample(size.many, steps=size.steps)),
                )
                for _ in range(2)
            ]
            client.close()
        plain = json.dumps({"shape": size.shape, "steps": size.steps, **size.expert.model_dump(mode="json")})
        with server("benchmarks.serve", "--plain", plain) as address:
            rate(address, "/generate", {}, 2, 0.0, 2)
            best["a plain route"] = rate(address, "/generate", {}, size.clients, 0.1 * serial, size.clients)
    facts |= {f"pictures/s, {label}": value for label, value in best.items()}
    theirs, ours = min(pair[1] for pair in large), min(pair[0] for pair in large)
    facts |= {f"{size.many} in one request, s": ours, f"{size.many} in process, s": theirs}
    return {
        f"itself one request at a time, {size.clients} clients, {name}": best["many at once"]
        / best["one at a time"],
        f"a plain route around diffusers, {size.clients} clients, {name}": best["many at once"]
        / best["a plain route"],
        f"in process, p95 of a lone request, {name}": facts["in process, p95 s"]
        / facts["lone request, p95 s"],
        f"in process, {size.many} samples in one request, {name}": theirs / ours,
    }, facts


def lone(
    client: httpx.Client, local: Any, body: dict[str, Any], size: Size
) -> tuple[list[float], list[float]]:
    """Seconds of requests that have the server to themselves, and of the same in process, in turn."""
    alone, in_process = [], []
    for seed in range(-3, size.lone):
        wish = {**body, "seed": max(seed, 0)}
        pair = (
            timed(partial(client.post, "/v1/samples", json=wish)),
            timed(partial(local.sample, 1, seed=wish["seed"], steps=size.steps)),
        )
        if seed >= 0:
            alone.append(pair[0])
            in_process.append(pair[1])
    return alone, in_process


def products(experts: Any, shape: tuple[int, ...], rows: int) -> float:
    """Seconds a row of the matrix products of experts alone, asked in turn about some rows, on one core."""
    seen: list[tuple[torch.nn.Linear, torch.Tensor]] = []
    for expert in experts:
        linears = [module for module in expert.modules() if isinstance(module, torch.nn.Linear)]
        hooks = [
            one.register_forward_pre_hook(lambda module, inputs: seen.append((module, inputs[0].clone())))
            for one in linears
        ]
        expert(torch.randn(rows, *shape), torch.rand(rows), None)
        for hook in hooks:
            hook.remove()

    def all_of_them() -> None:
        for module, given in seen:
            torch.nn.functional.linear(given, module.weight, module.bias)

    all_of_them()
    return min(timed(all_of_them) for _ in range(5)) / (rows * CLUSTERS)


def bounds(local: Any, size: Size) -> dict[str, float]:
    """What batching could gain at best: in this process without a server, and of matrix products alone.

    A lone row has one core, as long as its products are too small for two; many have all of them.
    """
    alone = timed(lambda: [local.sample(1, seed=seed, steps=size.steps) for seed in range(8)]) / 8
    together = timed(lambda: local.sample(size.clients, steps=size.steps)) / size.clients
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    with torch.inference_mode():
        experts = [local.ensemble.experts[k] for k in range(CLUSTERS)]
        one, several = (products(experts, size.shape, rows) for rows in (1, max(1, size.clients // CLUSTERS)))
    torch.set_num_threads(before)
    return {
        f"bound: {size.clients} at once against one by one, in process": alone / together,
        "bound: the same of matrix products alone, all cores against one": threads.cores() * one / several,
    }


def plain_route(spec: dict[str, Any]) -> None:
    """What people write first: a pipeline and a route. Requests are made one after the other."""
    import io
    import socket

    import uvicorn
    from diffusers import AutoencoderTiny, DDIMScheduler, DiTPipeline, DiTTransformer2DModel
    from fastapi import Body, FastAPI, Response

    channels, side = spec["shape"][0], spec["shape"][-1]
    transformer = DiTTransformer2DModel(
        num_attention_heads=spec["heads"],
        attention_head_dim=spec["width"] // spec["heads"],
        in_channels=channels,
        out_channels=channels,
        num_layers=spec["depth"],
        sample_size=side,
        patch_size=spec["patch"][0],
        num_embeds_ada_norm=10,
    )
    decoder = AutoencoderTiny(
        encoder_block_out_channels=(4,),
        decoder_block_out_channels=(4,),
        num_encoder_blocks=(1,),
        num_decoder_blocks=(1,),
        latent_channels=channels,
    )
    pipeline = DiTPipeline(transformer.eval(), decoder, DDIMScheduler())
    pipeline.set_progress_bar_config(disable=True)
    app = FastAPI()

    @app.post("/generate")
    async def generate(seed: int = Body(embed=True)) -> Response:
        source = torch.Generator().manual_seed(seed)
        images = pipeline([0], guidance_scale=1.0, num_inference_steps=spec["steps"], generator=source).images
        out = io.BytesIO()
        images[0].save(out, format="PNG")
        return Response(out.getvalue(), media_type="image/png")

    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        print(json.dumps({"address": f"http://127.0.0.1:{listener.getsockname()[1]}"}), flush=True)
        uvicorn.Server(uvicorn.Config(app, log_level="warning")).run([listener])


def measure(sizes: dict[str, Size]) -> dict[str, Any]:
    ratios: dict[str, float] = {}
    detail: dict[str, Any] = {}
    for name, size in sizes.items():
        more, facts = measure_size(name, size)
        ratios |= more
        detail[name] = facts
    bound = (
        "the experts' matrix products: what many rows gain over one by them, on all cores, is told beside; "
        "with few rows for each expert, the calls around them"
    )
    return {
        "benchmark": "serve",
        "ratios": ratios,
        "detail": {
            **detail,
            "what bounds it": bound,
            "cores": threads.cores(),
            "threads": os.environ.get("OMP_NUM_THREADS"),
        },
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--size", choices=SIZES, help="only this one")
    parser.add_argument("--small", action="store_true", help="only show that everything runs")
    parser.add_argument("--plain", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.plain:
        plain_route(json.loads(options.plain))
        return
    sizes = {options.size: SIZES[options.size]} if options.size else SIZES
    if options.small:
        sizes = {name: size._replace(**SMALL) for name, size in sizes.items()}
    found = measure(sizes)
    if options.json:
        print(json.dumps(found))
        return
    for what, ratio in found["ratios"].items():
        print(f"{what:72}{ratio:6.2f}")


if __name__ == "__main__":
    main()
