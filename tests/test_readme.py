"""README and docs say what is true."""

import ast
import functools
import json
import re
from pathlib import Path

import httpx
import pytest
import typer
from docs import generate

from atoll import cli
from tests.commands import Command, python
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


def test_the_tree_is_that_of_the_rooms():
    assert generate.readme() == README, "run `make docs`"


def test_generated_pages_are_those_of_the_source():
    for name, text in generate.pages().items():
        assert (ROOT / "docs" / name).read_text(encoding="utf-8") == text, "run `make docs`"


def test_every_module_is_on_the_page_of_modules():
    page, package = (ROOT / "docs" / "modules.md").read_text(encoding="utf-8"), ROOT / "src" / "atoll"
    for path in package.glob("*/**/*.py"):
        if path.stem != "__init__":
            inside = path.relative_to(package).parts[1:]  # the project's own folder may be called atoll too
            assert f"\n{'/'.join(inside)} " in page, path


def test_a_reader_sees_first_what_it_is_what_it_makes_and_how_to_run_it():
    """The opening of README, in this order, within a screen; all else is behind it."""
    opening = ("**Atoll trains", "](docs/pictures/", "\nmake demo", "<!-- tree -->")
    places = [README.index(text) for text in opening]
    assert places == sorted(places)
    assert README[: places[-1]].count("\n") < 40
    assert len(README) < 16_000, "details belong to docs/"


def test_schemas_are_those_of_the_config():
    for path, text in generate.schemas().items():
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


@functools.cache
def files_of_tests() -> dict[Path, str]:
    return {path: path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("test_*.py")}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_test_that_a_page_names_is_there(page):
    missing = [
        (file, function)
        for line in page.read_text(encoding="utf-8").splitlines()
        for file, function in named_tests(line)
        if not any(
            str(path).endswith(f"/{file}") and (not function or f"def {function}(" in text)
            for path, text in files_of_tests().items()
        )
    ]
    assert missing == []


def defined() -> set[str]:
    """All that the source defines, by every dotted name that a page may use: `loop.train`, `Run.begun`."""
    names: set[str] = set()
    for path in (ROOT / "src" / "atoll").rglob("*.py"):
        parts = path.relative_to(ROOT / "src" / "atoll").with_suffix("").parts
        parts = parts[:-1] if parts[-1] == "__init__" else parts
        names |= {".".join(parts[start:]) for start in range(len(parts))}
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            own = [alias.asname or alias.name for alias in getattr(node, "names", [])]
            own += [getattr(node, "name", "")]
            names |= {".".join((*parts[start:], name)) for name in own for start in range(len(parts))}
            if isinstance(node, ast.ClassDef):
                fields = {getattr(getattr(one, "target", None), "id", "") for one in node.body}
                inner = fields | {getattr(one, "name", "") for one in node.body}
                places = (node.name, node.name.lower(), ".".join((*parts, node.name)))
                names |= {f"{place}.{one}" for one in inner for place in places}
    return names


def test_everything_that_the_architecture_names_is_there():
    """Its walks are true as long as the functions on the way have these names."""
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    named = re.findall(r"`([A-Za-z_]+(?:\.[A-Za-z_]+)+)(?:\([^`]*\))?`", page)
    others = (".py", ".json", ".md", ".toml", "launch.lease")  # files, and a key of recipes
    named = [name for name in named if not name.endswith(others)]
    assert len(named) > 40
    assert sorted(set(named) - defined()) == []
    files = re.findall(r"`((?:[\w-]+/)+[\w-]+\.py)`", page)
    roots = (ROOT, ROOT / "src" / "atoll")
    assert [name for name in files if not any((root / name).exists() for root in roots)] == []


@functools.cache
def options() -> dict[str, set[str]]:
    """The options of every command."""
    commands = typer.main.get_command(cli.options.app).commands  # type: ignore[attr-defined]
    return {
        name: {"--help", *(text for one in command.params for text in one.opts)}
        for name, command in commands.items()
    }


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_command_and_option_that_a_page_names_is_there(page):
    """In blocks and in the middle of sentences; `atoll run --on ray` has an option `--on`."""
    text, known = page.read_text(encoding="utf-8"), options()
    spans = re.findall(r"`(atoll [a-z][^`]*)`", text)
    spans += [line.split(" #")[0] for block in blocks(text, "bash") for line in block.splitlines()]
    for span in (span for span in spans if re.match(r"atoll [a-z]", span)):
        name, words = span.split()[1], span.split()[2:]
        if span == "atoll compiled":  # a row of a benchmark
            continue
        assert name in known, span
        asked = {word.split("=")[0] for word in words if word.startswith("--")}
        assert asked <= known[name], (span, asked - known[name])


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
    small = [*steps, "expert.width=16", "router.width=16", "data.source=fashion-5k"]
    found = commands(README, "atoll")
    assert [line[1] for line in found] == ["doctor", "show", "run", "sample", "serve"]
    for line in found[:-1]:
        extra = [part for setting in small for part in ("--set", setting)] if line[1] == "run" else []
        done = atoll(*line[1:], *extra, environment={"ATOLL_RUNS": "runs"}, folder=tmp_path)
        assert done.returncode == 0, (line, done.stderr)
    assert (tmp_path / "pictures" / "grid.png").is_file()
    _a_picture_is_served(found[-1], tmp_path)
    for number, block in enumerate(blocks(README, "python")):
        program = tmp_path / f"block{number}.py"
        program.write_text(block + "\nassert images.shape == (16, 1, 28, 28), images.shape")
        done = python(program, folder=tmp_path)
        assert done.returncode == 0, done.stderr


def _a_picture_is_served(line, folder):
    """The server as written, at any free port; it is asked for a picture and stopped."""
    server = Command([*line[1:], "--port", "0", "--json"], {"ATOLL_RUNS": "runs"}, folder)
    try:
        address = json.loads(server.line())["address"]
        answer = httpx.post(f"{address}/v1/samples", json={"format": "png", "steps": 2}, timeout=600)
        assert answer.content.startswith(b"\x89PNG")
    finally:
        server.terminate()
        server.wait()


def test_the_demo_is_the_recipe_that_the_readme_shows():
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert "atoll run recipes/fashion.toml" in makefile
    assert (ROOT / "docs" / "pictures" / "fashion.png").is_file()
