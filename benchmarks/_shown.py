"""What a benchmark prints: one JSON object for programs, details and ratios for people."""

import json
from collections.abc import Mapping
from typing import Any


def show(found: Mapping[str, Any], as_json: bool) -> None:
    """The object that every benchmark makes: `benchmark`, `ratios` and `detail`."""
    if as_json:
        print(json.dumps(found))
        return
    print(json.dumps(found["detail"], indent=2))
    for what, ratio in found["ratios"].items():
        print(f"{ratio:8.2f}x  {what}")
