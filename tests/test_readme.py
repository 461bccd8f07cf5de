"""README and docs say what is true."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import httpx
import pytest
from docs import generate

from tests.commands import run as atoll

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]


def blocks(text: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", text, flags=re.DOTALL)


def commands(text: str, program: str) -> list[list[str]]:
    """The lines of bash blocks that call a program, without their comments."""
    lines = [line.split("#")[0].split() for block in blocks(text, "bash") for line in block.splitlines()]
    return [line for line in lines if line[:1] == [program]]


def test_the_tree_is_that_of_the_modules():
    assert generate.readme() == README, "run `make docs`"


def test_the_reference_is_that_of_the_config():
    assert (ROOT / "docs" / "reference.md").read_text(encoding="utf-8") == generate.reference(), (
        "run `make docs`"
    )


@pytest.mark.parametrize(
    ("path", "text"), generate.schemas().items(), ids=lambda one: getattr(one, "name", "")
)
def test_schemas_are_those_of_the_config(path, text):
    assert path.read_text(encoding="utf-8") == text, "run `make docs`"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    targets = re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8"))
    assert [name for name in targets if "://" not in name and not (page.parent / name).exists()] == []


def named_tests(line: str) -> list[tuple[str, str]]:
    """File and function of every test that a line names; `::name` alone is of the file before it."""
    named, last = [], ""
    for file, function in re.findall(r"`((?:[\w/]*/)?test_\w+\.py)?(?:::(\w+))?`", line):
        last = file or last
        if file or function:
            named.append((last, function))
    return named


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_test_that_a_page_names_is_there(page):
    texts = {path: path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("test_*.py")}
    missing = [
        (file, function)
        for line in page.read_text(encoding="utf-8").splitlines()
        for file, function in named_tests(line)
        if not any(
            str(path).endswith(f"/{file}") and (not function or f"def {function}(" in text)
            for path, text in texts.items()
        )
    ]
    assert missing == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_make_target_exists(page):
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = [word for line in commands(page.read_text(encoding="utf-8"), "make") for word in line[1:]]
    assert [name for name in targets if not re.search(rf"^{name}:", makefile, flags=re.MULTILINE)] == []


@pytest.mark.slow
def test_every_command_of_the_readme_runs(tmp_path):
    """As written, in a folder of its own; only the size of the run is turned down, by one more --set."""
    (tmp_path / "recipes").symlink_to(ROOT / "recipes")
    steps = ["start.steps=3", "expert.steps=3", "router.steps=3", "sample.steps=2"]
    small = [*steps, "expert.width=16", "router.width=16"]
    found = commands(README, "atoll")
    assert [line[1] for line in found] == ["doctor", "show", "run", "sample", "serve"]
    for line in found[:-1]:
        extra = [part for setting in small for part in ("--set", setting)] if line[1] == "run" else []
        done = atoll(*line[1:], *extra, environment={"ATOLL_RUNS": "runs"}, folder=tmp_path)
        assert done.returncode == 0, (line, done.stderr)
    assert (tmp_path / "pictures" / "grid.png").is_file()
    _a_picture_is_served(found[-1], tmp_path, {**os.environ, "ATOLL_RUNS": "runs", "OMP_NUM_THREADS": "1"})
    for block in blocks(README, "python"):
        done = subprocess.run(
            [sys.executable, "-c", block + "\nassert images.shape == (16, 1, 28, 28), images.shape"],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr


def _a_picture_is_served(line, folder, environment):
    """The server as written, at any free port; it is asked for a picture and stopped."""
    command = [sys.executable, "-m", "atoll", *line[1:], "--port", "0", "--json"]
    with subprocess.Popen(command, cwd=folder, env=environment, stdout=subprocess.PIPE, text=True) as server:
        try:
            address = json.loads(server.stdout.readline())["address"]
            answer = httpx.post(f"{address}/v1/samples", json={"format": "png", "steps": 2}, timeout=600)
            assert answer.content.startswith(b"\x89PNG")
        finally:
            server.terminate()


def test_the_demo_is_the_recipe_that_the_readme_shows():
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert "atoll run recipes/fashion.toml" in makefile
    assert (ROOT / "docs" / "pictures" / "fashion.png").is_file()
