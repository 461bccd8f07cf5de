"""The rules of the house, read off the source."""

import ast
import functools
import json
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterable
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "atoll"

MAY_IMPORT = {
    "errors": set(),
    "config": {"errors"},
    "devices": {"errors"},
    "threads": set(),
    "exits": {"errors", "threads"},
    "flow": set(),
    "credit": {"errors"},  # arithmetic: tensors in, tensors out
    "runs": {"config", "errors"},
    "data": {"config", "devices", "runs", "errors"},
    "models": {"config", "flow", "errors"},
    "sampling": {  # `credit`: how likely a sample is under each of its experts
        "config",
        "devices",
        "threads",
        "runs",
        "storage",
        "flow",
        "models",
        "data",
        "credit",
        "errors",
    },
    "train": {"config", "devices", "threads", "runs", "flow", "models", "data", "sampling", "errors"},
    # `credit`: components are signed as payments are
    "components": {
        "config",
        "runs",
        "flow",
        "models",
        "data",
        "sampling",
        "train",
        "credit",
        "errors",
    },
    # `credit`: velocities of a run on held-out samples are measured here, what they are worth is summed there
    "evaluate": {"config", "devices", "runs", "flow", "models", "data", "sampling", "credit", "errors"},
    "study": {"config", "runs", "data", "sampling", "evaluate", "plan", "launch", "pages", "exits", "errors"},
    "publish": {"config", "devices", "runs", "models", "data", "sampling", "errors"},
    "plan": {"config", "devices", "models", "runs", "threads", "errors"},
    "pages": {"config", "runs", "data", "sampling", "evaluate", "plan", "doctor"},
    # Of `launch` only how far jobs are, of `storage` only what is read: the live view looks at runs. Of
    # `evaluate` what `atoll credit --picture` does with a picture.
    "serve": {"config", "evaluate", "launch", "runs", "sampling", "storage", "errors"},
    "storage": {"config", "runs", "errors"},
    "launch": {"config", "runs", "storage", "plan", "exits", "threads", "errors"},
    "net": {  # `credit`: what an epoch pays is the same arithmetic for who pays and who audits
        "config",
        "credit",
        "data",
        "errors",
        "exits",
        "flow",
        "launch",
        "models",
        "runs",
        "storage",
        "threads",
        "train",
        "plan",
        "serve",
    },
    "doctor": {"config", "launch", "runs", "threads"},
    "python": {"config", "data", "launch", "pages", "runs", "sampling"},
    "__init__": {"python", "sampling"},
    "__main__": {"cli"},
}
"""Which room may import which; `cli` may import all, inside its commands."""


def modules() -> list[Path]:
    return sorted(SOURCE.rglob("*.py"))


def room(path: Path) -> str:
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


@functools.cache
def parsed(path: Path) -> ast.Module:
    """A module's tree, which nobody changes."""
    return ast.parse(path.read_text(encoding="utf-8"))


@functools.cache
def nodes(path: Path) -> list[ast.AST]:
    """All that a module's tree consists of: finding it takes longer than to look at it."""
    return list(ast.walk(parsed(path)))


@functools.cache
def imports(path: Path) -> set[str]:
    """The rooms that a module imports, anywhere in it."""
    found = set()
    for node in nodes(path):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = (
                [node.module] if node.module != "atoll" else [f"atoll.{alias.name}" for alias in node.names]
            )
        found |= {name.split(".")[1] for name in names if name.startswith("atoll.")}
    return found


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(SOURCE)))
def test_a_room_imports_only_what_it_may(path):
    if room(path) == "cli":
        return
    assert imports(path) - {room(path)} <= MAY_IMPORT[room(path)]


def test_what_a_room_may_import_is_what_it_imports():
    """An edge that nobody uses is a door left open."""
    used: dict[str, set[str]] = {}
    for path in modules():
        used.setdefault(room(path), set()).update(imports(path) - {room(path)})
    assert {name: may - used.get(name, set()) for name, may in MAY_IMPORT.items() if may - used[name]} == {}


def test_no_module_is_long():
    lines = {path: len(path.read_text(encoding="utf-8").splitlines()) for path in modules()}
    assert [path for path, count in lines.items() if count > 400] == []
    assert [path for path, count in lines.items() if room(path) == "cli" and count > 200] == []


def test_every_module_has_a_test_of_its_name():
    named = [path.relative_to(SOURCE) for path in modules() if not path.stem.startswith("__")]
    named = [path for path in named if "migrations" not in path.parts]  # tested as one, by test_migrating.py
    missing = {
        str(path) for path in named if not (ROOT / "tests" / path.parent / f"test_{path.name}").exists()
    }
    assert missing == set()


@pytest.mark.parametrize("name", ["evaluate", "study"])
def test_what_others_trust_has_at_least_as_much_test_as_code(name):
    """Numbers that nobody checks by eye: every line that makes one has a line that would notice."""
    code, tests = (
        sum(len(path.read_text(encoding="utf-8").splitlines()) for path in (folder / name).rglob("*.py"))
        for folder in (SOURCE, ROOT / "tests")
    )
    assert tests >= code


def test_training_cannot_see_who_launches_it():
    assert MAY_IMPORT["train"].isdisjoint({"launch", "storage", "net", "web", "cli"})


def test_launching_reaches_for_data_only_where_a_job_runs():
    """What places jobs must start quickly, and know nothing of how samples are made."""
    for path in (SOURCE / "launch").glob("*.py"):
        top = ast.Module(parsed(path).body, [])
        named = {
            getattr(node, "module", "") or ""
            for node in top.body
            if isinstance(node, ast.Import | ast.ImportFrom)
        }
        assert not [name for name in named if name.startswith(("atoll.data", "atoll.train"))], path


LIGHT = [
    "atoll",
    "atoll.cli",
    "atoll.config",
    "atoll.devices",
    "atoll.threads",
    "atoll.plan",
    "atoll.models.costs",
    "atoll.launch.machine",
    "atoll.runs",
    "atoll.launch.local",
    "atoll.launch.driver",
    "atoll.net.protocol",
    "atoll.net.database",
    "atoll.net.units",
    "atoll.net.work",
    "atoll.net.artifacts",
    "atoll.net.host",
    "atoll.net.signing",
]
LOADED = """
import importlib, json, sys

heavy = {"torch", "faiss", "matplotlib", "pyarrow", "numpy", "transformers", "diffusers"}
loaded = {}
for module in sys.argv[1:]:
    importlib.import_module(module)
    loaded[module] = sorted(heavy & set(sys.modules))
print(json.dumps(loaded))
"""


def test_these_load_without_torch():
    """One after the other in one interpreter: what none of them has loaded, nobody has."""
    command = [sys.executable, "-c", LOADED, *LIGHT]
    answer = subprocess.run(command, capture_output=True, text=True, check=True)
    assert json.loads(answer.stdout) == {module: [] for module in LIGHT}


def named_stages(parts: Iterable[ast.AST]) -> list[str]:
    """Stages that a module asks for by name: `node(run, "router")`, `run.stage("samples")`, "expert 0"."""
    names = []
    for node in parts:
        if isinstance(node, ast.Call):
            name = getattr(node.func, "attr", getattr(node.func, "id", ""))
            given = node.args[1:2] if name == "node" else node.args[:1] if name == "stage" else []
            names += [ast.unparse(one) for one in given if isinstance(one, ast.Constant | ast.JoinedStr)]
        elif isinstance(node, ast.Constant) and re.fullmatch(
            r"(expert|cluster|drawn|init) \d*", str(node.value)
        ):
            names.append(ast.unparse(node))
    return names


@pytest.mark.parametrize("name", ["launch", "storage", "study", "plan", "cli", "evaluate", "publish"])
def test_nobody_but_the_graph_knows_a_stage_by_name(name):
    """Who drives, stores, plans or studies a run asks the graph: a new stage needs no line there."""
    known = {path: named_stages(nodes(path)) for path in (SOURCE / name).rglob("*.py")}
    assert {path.name: names for path, names in known.items() if names} == {}
    bad = "graph.node(run, 'router'); run.stage('samples'); costs['expert 0']; node(run, f'expert {k}')"
    assert len(named_stages(ast.walk(ast.parse(bad)))) >= 4


def test_no_module_is_an_attic():
    forbidden = {"utils", "util", "common", "core", "helpers", "helper", "manager", "misc", "base"}
    assert [path for path in modules() if path.stem in forbidden or path.parent.name in forbidden] == []


def test_every_module_says_its_one_idea():
    for path in modules():
        said = ast.get_docstring(parsed(path))
        assert said, path
        assert said.splitlines()[0].endswith((".", "?")), path


def given_names(parts: Iterable[ast.AST]) -> list[tuple[int, str]]:
    """The names that a module gives to variables, parameters, attributes and fields, with their lines."""
    names = []
    for node in parts:
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.append((node.lineno, node.id))
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            names.append((node.lineno, node.attr))
        elif isinstance(node, ast.arg):
            names.append((node.lineno, node.arg))
    return names


@pytest.mark.parametrize(
    "text",
    [
        "found = 1",
        "found: int = 1",
        "class A:\n    found: int",
        "self.found = 1",
        "for found in []: pass",
        "x = [found for found in []]",
        "if (found := 1): pass",
        "with a as (b, found): pass",
        "def f(*, found): pass",
        "def f(**found): pass",
        "f = lambda found: 1",
    ],
)
def test_every_way_to_give_a_name_is_seen(text):
    assert "found" in [name for _, name in given_names(ast.walk(ast.parse(text)))]


def test_variables_are_nouns():
    """What is found, told or said is a record, a condition, a sentence: the name says which."""
    vague = {"found", "told", "said", "how"}
    offenders = [
        f"{path.relative_to(SOURCE)}:{line} {name}"
        for path in modules()
        for line, name in given_names(nodes(path))
        if name in vague
    ]
    assert offenders == []


def code_files() -> list[Path]:
    folders = [ROOT / name for name in ("src", "tests", "benchmarks", "docs")]
    return [path for folder in folders for path in folder.rglob("*.py") if path != Path(__file__)]


def test_no_pickle():
    """Weights of strangers must not be able to run code here."""
    forbidden = re.compile(r"\bpickle\b(?!=)|torch\.(load|save)\(|joblib|\bdill\b|\bshelve\b")
    found = [path for path in code_files() if forbidden.search(path.read_text(encoding="utf-8"))]
    # a test may write such a file, to see it refused
    ours = [path for path in code_files() if ROOT / "tests" not in path.parents]
    found += [path for path in ours if "allow_pickle=True" in path.read_text(encoding="utf-8")]
    assert found == []


def test_no_torchvision():
    """Next to a CPU build of torch its public wheel breaks transformers by its mere presence.

    We neither import it nor ask for it, or for what brings it, but in the extra of those who want it.
    """
    importing = re.compile(r"^\s*(import|from) torchvision\b", re.MULTILINE)
    assert [path for path in code_files() if importing.search(path.read_text(encoding="utf-8"))] == []
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    assert extras.pop("fid") == ["torch-fidelity>=0.3"]
    asked = [*project["dependencies"], *(name for names in extras.values() for name in names)]
    assert not [name for name in asked if re.search(r"torchvision|torch-fidelity|\bfid\b", name)]


def test_defaults_of_the_mathematics_cite_their_equation():
    """Every public function of `flow` names a paper, an equation or an algorithm, or is plain plumbing."""
    plumbing = {
        "expand",
        "one_hot",
        "times",
        "generator",
        "training_draws",
        "sample_noise",
        "sample_uniform",
        "between",
    }
    cites = re.compile(r"eq\.|§|alg\.|\(Euler\)|arXiv|Table|prop\.", re.IGNORECASE)
    silent = []
    for path in (SOURCE / "flow").glob("*.py"):
        for node in nodes(path):
            if (
                isinstance(node, ast.FunctionDef)
                and not node.name.startswith("_")
                and node.name not in plumbing
            ):
                if not cites.search(ast.get_docstring(node) or ""):
                    silent.append(f"{path.name}:{node.name}")
    assert [name for name in silent if not name.endswith(("integrate", "full"))] == []


def test_the_project_speaks_of_itself_alone():
    """No paths of a machine, no hosts of a registry, in anything that is committed."""
    listed = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False
    ).stdout.split()
    pattern = re.compile(r"/(work|root|home|tmp|opt)/|find-links|index-url|pypi\.org", re.IGNORECASE)
    texts = [
        ROOT / name for name in listed if name.endswith((".py", ".md", ".toml", ".txt", "Makefile", ".j2"))
    ]
    offenders = [
        path
        for path in texts
        if path.exists() and path != Path(__file__) and pattern.search(path.read_text())
    ]
    assert offenders == []
