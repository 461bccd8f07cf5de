"""Where a machine of a cluster keeps what it has downloaded."""

import os
import tempfile
from pathlib import Path


def scratch_folder() -> Path:
    """$ATOLL_SCRATCH, or a folder among temporary files; each of Ray's machines has one of its own."""
    import ray

    top = Path(os.environ.get("ATOLL_SCRATCH") or Path(tempfile.gettempdir()) / f"atoll-{os.getuid()}")
    folder = top / ray.get_runtime_context().get_node_id()[:16]
    folder.mkdir(parents=True, exist_ok=True)
    return folder
