"""Many connections at once, with requests that are right, wrong, or abandoned: what a server must bear.

Nothing is answered with a server error or to the wrong client, and memory comes back. The server's networks
are tiny and random; every right answer is compared with what its seed gives in process.
"""

import argparse
import asyncio
import io
import json
import random
import tempfile
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import torch
from prometheus_client.parser import text_string_to_metric_families

import atoll
from atoll.config import NetworkConfig
from atoll.serve.batching import IDLE
from benchmarks.serve import Size, server, write_run

TINY = NetworkConfig(width=16, depth=1, heads=2, patch=(7, 7))
SIZE = Size(TINY, TINY, (1, 28, 28), steps=4)
SEEDS = 16
WRONG: list[tuple[str, str, Any]] = [
    ("POST", "/v1/samples", {"num": -1}),
    ("POST", "/v1/samples", {"steps": 10**6}),
    ("POST", "/v1/samples", {"label": "shoe"}),
    ("POST", "/v1/samples", {"what": "ever"}),
    ("POST", "/v1/images/generations", {"n": 3}),
    ("DELETE", "/v1/samples/nothing", None),
    ("GET", "/v1/images/files/..%2f..%2fpasswd", None),
]


@dataclass
class Outcome:
    """What came of all requests."""

    statuses: Counter[int] = field(default_factory=Counter)
    wrong: int = 0
    """Right requests whose answer was another's."""
    unexpected: Counter[str] = field(default_factory=Counter)


@dataclass(frozen=True)
class Visitor:
    """One client after another, each with a wish of its own."""

    client: httpx.AsyncClient
    expected: dict[int, np.ndarray[Any, Any]]
    outcome: Outcome

    async def visit(self, number: int) -> None:
        """One request: right, wrong or abandoned."""
        source = random.Random(number)
        kind = source.choices(["right", "wrong", "abandoned", "stream"], [5, 3, 1, 1])[0]
        try:
            await getattr(self, kind)(source)
        except httpx.HTTPError as error:
            self.outcome.unexpected[type(error).__name__] += 1

    async def right(self, source: random.Random) -> None:
        """Samples of some seeds, compared with what those seeds give."""
        seeds = [source.randrange(SEEDS) for _ in range(source.choice([1, 1, 1, 3]))]
        body = {"seeds": seeds, "format": "npz", "steps": SIZE.steps}
        answer = await self.client.post("/v1/samples", json=body)
        self.outcome.statuses[answer.status_code] += 1
        if answer.status_code == 200:
            made = np.load(io.BytesIO(answer.content))["samples"]
            wanted = np.stack([self.expected[seed] for seed in seeds])
            self.outcome.wrong += not np.allclose(made, wanted, atol=1e-3)

    async def wrong(self, source: random.Random) -> None:
        """Something that cannot be had."""
        method, path, body = source.choice(WRONG)
        answer = await self.client.request(method, path, json=body)
        self.outcome.statuses[answer.status_code] += 1

    async def abandoned(self, source: random.Random) -> None:
        """Something long that nobody waits for."""
        body = {"num": 8, "steps": 1000}
        task = asyncio.ensure_future(self.client.post("/v1/samples", json=body))
        await asyncio.sleep(source.uniform(0.001, 0.1))
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    async def stream(self, source: random.Random) -> None:
        """A sample that is watched."""
        seed = source.randrange(SEEDS)
        body = {"seeds": [seed], "stream": True, "steps": SIZE.steps}
        async with self.client.stream("POST", "/v1/samples", json=body) as answer:
            self.outcome.statuses[answer.status_code] += 1
            lines = [line async for line in answer.aiter_lines()]
        done = [line for line in lines if line.startswith("data: ") and '"samples"' in line]
        if answer.status_code == 200:
            told = json.loads(done[0].removeprefix("data: "))["samples"][0]["seed"] if done else None
            self.outcome.wrong += told != seed


async def press(address: str, requests: int, connections: int, expected: dict[int, Any]) -> Outcome:
    """So many requests over so many connections at once."""
    outcome, numbers = Outcome(), iter(range(requests))
    limits = httpx.Limits(max_connections=connections, max_keepalive_connections=connections)
    async with httpx.AsyncClient(base_url=address, timeout=600, limits=limits) as client:
        visitor = Visitor(client, expected, outcome)

        async def come_again() -> None:
            for number in numbers:
                await visitor.visit(number)

        await asyncio.gather(*(come_again() for _ in range(connections)))
    return outcome


def told(address: str, name: str) -> float:
    """One number of the server's metrics."""
    families = text_string_to_metric_families(httpx.get(f"{address}/metrics").text)
    return sum(sample.value for family in families for sample in family.samples if sample.name == name)


async def settled(address: str) -> None:
    """Wait until nobody's rows are left, and until memory that was freed has been given back."""
    while told(address, "atoll_requests_under_way") > 0:
        await asyncio.sleep(0.1)
    await asyncio.sleep(2 * IDLE)


def measure(requests: int, connections: int) -> dict[str, Any]:
    """One run, after a warm-up of a tenth of it."""
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        write_run(run, SIZE)
        local = atoll.load(run)
        torch.set_num_threads(1)
        expected = {seed: local.sample(1, seed=seed, steps=SIZE.steps)[0].numpy() for seed in range(SEEDS)}
        with server("atoll", "serve", str(run), "--port", "0", "--json") as address:
            asyncio.run(press(address, requests // 10, connections, expected))
            asyncio.run(settled(address))
            before = told(address, "process_resident_memory_bytes")
            outcome = asyncio.run(press(address, requests, connections, expected))
            asyncio.run(settled(address))
            after = told(address, "process_resident_memory_bytes")
            rows = told(address, "atoll_rows")
    failures = sum(count for status, count in outcome.statuses.items() if status >= 500)
    return {
        "benchmark": "load",
        "ratios": {"its memory before, after": before / after},
        "detail": {
            "requests": requests,
            "connections": connections,
            "answers by status": dict(sorted(outcome.statuses.items())),
            "server errors": failures,
            "answers to the wrong client": outcome.wrong,
            "connections that broke": dict(outcome.unexpected),
            "rows left": rows,
            "bytes before and after": [before, after],
        },
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--connections", type=int, default=500)
    options = parser.parse_args()
    found = measure(options.requests, options.connections)
    print(json.dumps(found) if options.json else json.dumps(found["detail"], indent=2))


if __name__ == "__main__":
    main()
