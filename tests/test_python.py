"""Training from Python: a recipe and what is other than it says, to a run that can be sampled."""

import subprocess
import sys

import pytest

import atoll
from atoll import python
from atoll.errors import ConfigError
from atoll.launch import driver, notebook
from atoll.runs import Run


@pytest.fixture
def driven(monkeypatch):
    """What the driver was asked for, instead of a training."""
    calls = []
    monkeypatch.setattr(
        driver, "drive", lambda run, on, screen, start_over: calls.append((run, on, start_over))
    )
    return calls


def test_settings_by_section_are_those_of_the_recipe_with_changes(tiny, driven):
    done = atoll.run(tiny, expert={"steps": 100, "patch": (7, 7)}, name="quick", quiet=True)
    run, on, start_over = driven[0]
    assert (run.config.expert.steps, run.config.expert.batch) == (100, 8)
    assert run.config.expert.patch == (7, 7)
    assert (run.config.name, on, start_over) == ("quick", "local", False)
    assert done.folder == run.path
    assert done.config == run.config
    assert (done.folder / "run.toml").read_text() == tiny.read_text()
    assert done.report == run.path / "report" / "report.html"
    assert "quick" in repr(done)


def test_a_mistake_is_told_in_one_line_and_nothing_is_written(tiny, driven, tmp_path):
    with pytest.raises(ConfigError, match=r"unknown key 'expert.step', did you mean 'expert.steps'\?"):
        atoll.run(tiny, expert={"step": 100})
    with pytest.raises(ConfigError, match="unknown key 'exprt'"):
        atoll.run(str(tiny), exprt={"steps": 100})
    assert driven == []
    assert not (tmp_path / "runs").exists()


def test_it_samples_as_the_run_does(finished):
    done = python.Finished(finished.path)
    assert (done.sample(2, seed=3) == atoll.load(finished.path).sample(2, seed=3)).all()
    assert done.sample(seed=1).shape == (6, 1, 28, 28), "as many as the recipe says"


def test_a_notebook_shows_samples_and_page(finished):
    done = python.Finished(finished.path)
    assert "report.html" in done._repr_html_()
    assert "<img" not in done._repr_html_()
    (finished.path / "samples").mkdir()
    (finished.path / "samples" / "grid.png").write_bytes(b"\x89PNG")
    assert "data:image/png" in done._repr_html_()


def test_progress_is_shown_where_one_looks(monkeypatch):
    monkeypatch.setattr(notebook, "is_here", lambda: True)
    assert python.screen() == notebook.screen()
    assert python.screen(quiet=True) != notebook.screen()
    with python.screen(quiet=True).table() as watch, python.screen(quiet=True).bar() as bar:
        watch([])
        assert bar is None


def test_a_clean_listing():
    code = "import atoll, atoll.config, atoll.cli; print(dir(atoll))"
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == "['__version__', 'load', 'pipeline', 'run']"
    assert Run.__name__ not in dir(atoll)
