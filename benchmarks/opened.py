"""How long it takes from `atoll serve RUN` to a finished picture in a browser that is already open.

Without `--run`, networks of the demo's size with random weights. Needs Chromium and playwright.
"""

import argparse
import json
import shutil
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.serve import SIZES, server, write_run

GOAL = 5.0
"""Seconds that a person waits gladly."""
FINISHED = "() => document.querySelectorAll('.panel .links a').length > 0"
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"]


def first_picture(browser: Any, run: Path) -> tuple[float, float]:
    """Seconds until the server says where it is, and until a picture is finished on its page."""
    page = browser.new_page()
    since = time.perf_counter()
    with server("atoll", "serve", str(run), "--port", "0", "--json") as address:
        ready = time.perf_counter() - since
        page.goto(address)
        page.wait_for_function(FINISHED)
        seconds = time.perf_counter() - since
    page.close()
    return ready, seconds


def measure(run: Path, repeats: int) -> dict[str, Any]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        path = shutil.which("chromium") or shutil.which("chromium-browser")
        browser = playwright.chromium.launch(executable_path=path, args=FLAGS)
        pairs = [first_picture(browser, run) for _ in range(repeats)]
        browser.close()
    slowest = max(seconds for _, seconds in pairs)
    return {
        "benchmark": "opened",
        "ratios": {f"{GOAL:g} s, from `atoll serve` to a picture in a browser": GOAL / slowest},
        "detail": {
            "seconds until it serves": [ready for ready, _ in pairs],
            "seconds until there is a picture": [seconds for _, seconds in pairs],
        },
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--run", type=Path, help="a finished run")
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        run = options.run
        if run is None:
            run = Path(folder) / "run"
            write_run(run, SIZES["demo"])
        found = measure(run, options.repeats)
    print(json.dumps(found) if options.json else json.dumps(found["detail"], indent=2))


if __name__ == "__main__":
    main()
