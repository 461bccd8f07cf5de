"""`/metrics`: requests, queue, fill of batches, seconds per step, loads of experts, memory."""

from collections.abc import Iterator

from fastapi import APIRouter, Response
from prometheus_client import CollectorRegistry, Counter, Histogram, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from prometheus_client.registry import Collector

from atoll.serve.api import PROBLEMS, Here
from atoll.serve.batching import Scheduler
from atoll.serve.crowd import Observe

ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)

router = APIRouter()


@router.get(
    "/metrics",
    responses={**PROBLEMS, 200: {"content": {"text/plain": {}}}},
    response_class=Response,
)
async def metrics(service: Here) -> Response:
    """What a Prometheus server collects."""
    return Response(generate_latest(service.registry), media_type=CONTENT_TYPE_LATEST)


class Requests:
    """Counts answers by route and status."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._counter = Counter(
            "atoll_requests", "Requests that were answered.", ["route", "status"], registry=registry
        )

    def __call__(self, route: str, status: int) -> None:
        """One more answer."""
        self._counter.labels(route, str(status)).inc()


def registered(scheduler: Scheduler) -> CollectorRegistry:
    """A registry of one server's numbers; steps are observed from now on."""
    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    registry.register(_Numbers(scheduler))
    seconds = Histogram("atoll_step_seconds", "Seconds of a step.", ["model"], registry=registry)
    rows = Histogram(
        "atoll_step_rows",
        "Rows that a step moves: the fill of the batch.",
        ["model"],
        buckets=ROWS,
        registry=registry,
    )
    for name, crowd in scheduler.crowds.items():
        crowd.observers.append(_observer(seconds.labels(name), rows.labels(name)))
    return registry


def _observer(seconds: Histogram, rows: Histogram) -> Observe:
    def observe(number: int, taken: float) -> None:
        seconds.observe(taken)
        rows.observe(number)

    return observe


class _Numbers(Collector):
    """What is true at the moment of asking."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler

    def collect(self) -> Iterator[Metric]:
        queue = GaugeMetricFamily("atoll_requests_under_way", "Requests accepted and not yet answered.")
        queue.add_metric([], len(self._scheduler.tickets))
        yield queue
        crowds = self._scheduler.crowds.items()
        rows = GaugeMetricFamily("atoll_rows", "Samples under way.", labels=["model"])
        waiting = GaugeMetricFamily("atoll_samples_waiting", "Samples that have not begun.", labels=["model"])
        loads = CounterMetricFamily("atoll_expert_loads", "How often an expert was loaded.", labels=["model"])
        for name, crowd in crowds:
            rows.add_metric([name], len(crowd.rows))
            waiting.add_metric([name], crowd.waiting)
            loads.add_metric([name], crowd.loads)
        yield from (rows, waiting, loads)
