"""A page as a browser sees it: Chromium without a window, asked once and closed."""

import json
import re
import shutil
import subprocess
from html import unescape
from pathlib import Path
from typing import NamedTuple

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome")
ASK = """<script>
addEventListener("load", () => setTimeout(() => {
  const all = [...document.images];
  document.querySelectorAll("details").forEach(e => { e.open = true; });
  const found = {
    pictures: all.length,
    broken: all.filter(i => !(i.complete && i.naturalWidth)).length,
    drawings: document.querySelectorAll("svg").length,
    sticks_out: document.documentElement.scrollWidth - document.documentElement.clientWidth,
    cut: [...document.querySelectorAll(".card, pre")].filter(e => e.scrollWidth > e.clientWidth + 1).length,
    width: document.documentElement.clientWidth,
  };
  const answer = document.createElement("p");
  answer.id = "answer";
  answer.textContent = JSON.stringify(found);
  document.body.append(answer);
}, 50));
</script>"""


class Seen(NamedTuple):
    pictures: int
    broken: int
    drawings: int
    sticks_out: int
    """By how many pixels the page is wider than the window."""
    cut: int
    """Cards that hold more than they show without scrolling sideways; what is folded is opened first."""
    width: int
    complaints: list[str]
    """What the console says."""


def chromium() -> str:
    found = next((path for name in NAMES if (path := shutil.which(name))), None)
    assert found is not None
    return found


needs_browser = pytest.mark.skipif(
    not any(shutil.which(name) for name in NAMES),
    reason="no Chromium here to open the page in; install one (CI does) to run this",
)


def look(program: str, page: Path, width: int, folder: Path) -> Seen:
    """Open a copy of the page that also tells how it was received.

    A window has a least width, so the page stands in a frame of the width that is asked for.
    """
    inner = folder / f"inner-{width}.html"
    inner.write_text(ASK + page.read_text(encoding="utf-8"), encoding="utf-8")
    tell = (
        "const f = document.getElementById('f'); f.onload = () => setTimeout(() => { document.title = 'x'; "
    )
    tell += "document.body.dataset.answer = f.contentDocument.getElementById('answer').textContent; }, 500);"
    outer = folder / f"outer-{width}.html"
    outer.write_text(
        "<!doctype html><title>outer</title>"
        f"<iframe id='f' style='width: {width}px; height: 900px; border: 0'></iframe>"
        f"<script>{tell} f.src = '{inner.name}';</script>",
        encoding="utf-8",
    )
    done = subprocess.run(
        [
            program,
            *("--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-sync"),
            *("--disable-background-networking", "--disable-component-update", "--disable-dev-shm-usage"),
            *("--allow-file-access-from-files", "--enable-logging=stderr", "--log-level=0"),
            f"--user-data-dir={folder / 'profile'}",
            *("--window-size=1400,1000", "--virtual-time-budget=20000", "--dump-dom", outer.as_uri()),
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    answer = re.search(r'data-answer="([^"]*)"', done.stdout)
    assert answer, (done.stdout[-2000:], done.stderr[-2000:])
    complaints = [line for line in done.stderr.splitlines() if "CONSOLE" in line]
    return Seen(**json.loads(unescape(answer[1])), complaints=complaints)
