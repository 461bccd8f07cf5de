"""A real Ray cluster of fake machines with different resources, one for all tests that need one."""

import contextlib
import logging
import time
from types import SimpleNamespace
from typing import Any

import pytest

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
def cluster(scratch, submissions):
    """A head without GPUs, which may take submissions, and two machines with some that may be lost."""
    on_ray.library()
    from ray.cluster_utils import Cluster

    port = s3.free_ports(1)[0]
    head = {"num_cpus": 2, "include_dashboard": submissions, "dashboard_port": port, "no_monitor": True}
    head |= MEMORY
    with unhurried(), contextlib.nullcontext() if submissions else without_dashboards():
        made: Any = Cluster(initialize_head=True, head_node_args=head)
        made.islands = [made.add_node(**node, **MEMORY) for node in ISLANDS]
    made.dashboard, made.scratch = f"http://{made.head_node.address_info.get('webui_url')}", scratch
    try:
        yield made
    finally:
        made.shutdown()


@contextlib.contextmanager
def without_dashboards():
    """None on the head, and agents on machines that load nothing of it: what takes submissions is dear."""
    from ray._private import node, utils

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(utils, "get_dashboard_dependency_error", lambda: ImportError("not needed"))
        patch.setattr(node.Node, "start_api_server", lambda self, **options: None)
        yield


@contextlib.contextmanager
def unhurried():
    """A machine that is not up within thirty seconds ends: on a busy computer these are ten minutes."""
    from ray._private import node

    slow = SimpleNamespace(sleep=time.sleep, time=time.time, monotonic=lambda: time.monotonic() / 20)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(node, "time", slow)
        yield


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
