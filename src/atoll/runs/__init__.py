"""A run on disk: where things live, what is done, metrics as lines."""

from atoll.runs.files import (
    append_line,
    digest,
    digest_of_list,
    file_digest,
    read_json,
    read_lines,
    replacing,
    safe_name,
    write_json,
)
from atoll.runs.metrics import Follower, Metrics, Tail
from atoll.runs.parsing import read_stamped, stamped, unstamped
from atoll.runs.run import CREDIT, EVALUATION, EVENTS, RECIPE, RESOLVED, Run, made_in, runs_folder
from atoll.runs.signals import stop_requests
from atoll.runs.stage import DONE, STARTED, Stage

__all__ = [
    "CREDIT",
    "DONE",
    "EVALUATION",
    "EVENTS",
    "RECIPE",
    "RESOLVED",
    "STARTED",
    "Follower",
    "Metrics",
    "Run",
    "Stage",
    "Tail",
    "append_line",
    "digest",
    "digest_of_list",
    "file_digest",
    "made_in",
    "read_json",
    "read_lines",
    "read_stamped",
    "replacing",
    "runs_folder",
    "safe_name",
    "stamped",
    "stop_requests",
    "unstamped",
    "write_json",
]
