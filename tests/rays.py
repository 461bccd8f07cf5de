"""A real Ray cluster of fake machines with different resources, one for all tests that need one."""

import contextlib
import logging
from typing import Any

from atoll.launch import on_ray
from tests import s3

MEMORY: dict[str, Any] = {
    "memory": 2 * 10**9,
    "object_store_memory": 80 * 10**6,
    "include_log_monitor": False,
}
ISLANDS: list[dict[str, Any]] = [
    {"num_cpus": 2, "num_gpus": 2, "resources": {"island": 9}},
    {"num_cpus": 1, "num_gpus": 1, "resources": {"island": 9}},
]
"""Ray believes what it is told: these GPUs do not exist, and whoever gets one works on the CPU."""


@contextlib.contextmanager
def cluster(scratch):
    """A head without GPUs, which takes submissions as well, and two machines with some that may be lost."""
    on_ray.library()
    from ray.cluster_utils import Cluster

    port = s3.free_ports(1)[0]
    head = {"num_cpus": 2, "include_dashboard": True, "dashboard_port": port, "no_monitor": True}
    head |= MEMORY
    made: Any = patiently(lambda: Cluster(initialize_head=True, head_node_args=head))
    made.dashboard, made.scratch = f"http://{made.head_node.address_info['webui_url']}", scratch
    made.islands = [patiently(lambda node=node: made.add_node(**node, **MEMORY)) for node in ISLANDS]
    try:
        yield made
    finally:
        made.shutdown()


def patiently(start):
    """Start a machine; one whose parts are not up in time, as on a busy computer, ends itself."""
    for _ in range(8):
        try:
            return start()
        except Exception as problem:
            if "timed out during startup" not in str(problem):
                raise
    raise AssertionError("Ray does not start")


@contextlib.contextmanager
def joined(cluster, variables):
    """As a driver in this process, whose workers have these variables besides those of their machines."""
    library = on_ray.library()
    library.init(
        address=cluster.address,
        log_to_driver=False,
        logging_level=logging.ERROR,
        runtime_env={"env_vars": variables} if variables else None,
    )
    try:
        yield
    finally:
        library.shutdown()
