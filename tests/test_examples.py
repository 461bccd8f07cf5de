"""The notebooks of examples/ run from their first cell to their last, as they are."""

import os
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"
SOURCE = EXAMPLES.parent / "src"


def texts(cell):
    """All that a cell printed or showed as text."""
    return "".join(
        output.get("text", "") or output.get("data", {}).get("text/plain", "") for output in cell["outputs"]
    )


@pytest.mark.filterwarnings("default")
def test_the_notebook_runs(tmp_path, monkeypatch):
    import nbclient
    import nbformat

    (tmp_path / "two-experts.toml").write_bytes((EXAMPLES / "two-experts.toml").read_bytes())
    monkeypatch.setenv("PYTHONPATH", f"{SOURCE}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    monkeypatch.setenv("JUPYTER_PLATFORM_DIRS", "1")
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    notebook = nbformat.read(EXAMPLES / "two-experts.ipynb", as_version=4)
    assert not any(cell.get("outputs") for cell in notebook.cells), "it is kept without what it printed"
    nbclient.NotebookClient(notebook, timeout=900, resources={"metadata": {"path": tmp_path}}).execute()
    cells = {cell["id"]: cell for cell in notebook.cells if cell["cell_type"] == "code"}
    assert "torch.Size([16, 1, 28, 28])" in texts(cells["sample"])
    assert "[60, 120]" in texts(cells["grown"])
    assert "expert 1" in texts(cells["train"]), "progress is shown below the cell"
    shown = {mime for cell in cells.values() for output in cell["outputs"] for mime in output.get("data", {})}
    assert {"image/png", "text/html"} <= shown
    assert (tmp_path / "runs" / "notebook" / "report" / "report.html").is_file()
