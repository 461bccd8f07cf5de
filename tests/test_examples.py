"""The notebooks of examples/ run from their first cell to their last, as they are."""

import json
import os
from pathlib import Path
from typing import Any

import matplotlib
import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"
SOURCE = EXAMPLES.parent / "src"


def texts(cell):
    """All that a cell printed or showed as text."""
    return "".join(
        output.get("text", "") or output.get("data", {}).get("text/plain", "") for output in cell["outputs"]
    )


def cells():
    notebook = json.loads((EXAMPLES / "two-experts.ipynb").read_text(encoding="utf-8"))
    return [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]


def test_the_notebook_is_kept_without_what_it_printed():
    assert not any(cell["outputs"] for cell in cells())


LESS = {"steps = 120": "steps = 2", "steps = 40": "steps = 2", "steps = 10": "steps = 2"}
LESS |= {"log_every = 20": "log_every = 1", "holdout_every = 40": "holdout_every = 1"}
LESS |= {"preview_every = 60": "preview_every = 1"}


@pytest.mark.filterwarnings("default")
def test_its_cells_run_with_less_of_everything(tmp_path, monkeypatch):
    recipe = (EXAMPLES / "two-experts.toml").read_text(encoding="utf-8")
    for much, little in LESS.items():
        assert recipe.count(much) == 1
        recipe = recipe.replace(much, little)
    (tmp_path / "two-experts.toml").write_text(recipe)
    monkeypatch.chdir(tmp_path)
    matplotlib.use("agg")
    names: dict[str, Any] = {}
    for cell in cells():
        exec(compile("".join(cell["source"]), cell["id"], "exec"), names)
    assert names["images"].shape == (16, 1, 28, 28)
    assert [step for step, _ in names["steps"]] == [1, 2]
    assert names["run"].report.is_file()


@pytest.mark.thorough
@pytest.mark.filterwarnings("default")
def test_the_notebook_runs(tmp_path, monkeypatch):
    import nbclient
    import nbformat

    (tmp_path / "two-experts.toml").write_bytes((EXAMPLES / "two-experts.toml").read_bytes())
    monkeypatch.setenv("PYTHONPATH", f"{SOURCE}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    monkeypatch.setenv("JUPYTER_PLATFORM_DIRS", "1")
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    notebook = nbformat.read(EXAMPLES / "two-experts.ipynb", as_version=4)
    nbclient.NotebookClient(notebook, timeout=900, resources={"metadata": {"path": tmp_path}}).execute()
    cells = {cell["id"]: cell for cell in notebook.cells if cell["cell_type"] == "code"}
    assert "torch.Size([16, 1, 28, 28])" in texts(cells["sample"])
    assert "[60, 120]" in texts(cells["grown"])
    assert "expert 1" in texts(cells["train"]), "progress is shown below the cell"
    shown = {mime for cell in cells.values() for output in cell["outputs"] for mime in output.get("data", {})}
    assert {"image/png", "text/html"} <= shown
    assert (tmp_path / "runs" / "notebook" / "report" / "report.html").is_file()
