"""Progress below a cell: one text, written anew, not too often, and the last one is always shown."""

import sys
from types import SimpleNamespace

import pytest

from atoll.launch import notebook


class Handle:
    def __init__(self, texts):
        self.texts = texts

    def update(self, content, raw):
        assert raw
        self.texts.append(content["text/plain"])


@pytest.fixture
def shown(monkeypatch):
    """What a notebook would show, text by text."""
    texts: list[str] = []

    def display(content, raw, display_id):
        assert raw and display_id
        texts.append(content["text/plain"])
        return Handle(texts)

    shell = SimpleNamespace(
        get_ipython=lambda: SimpleNamespace(kernel=1), display=SimpleNamespace(display=display)
    )
    monkeypatch.setitem(sys.modules, "IPython", shell)
    return texts


def test_only_a_kernel_is_a_notebook(monkeypatch, shown):
    assert notebook.is_here()
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: SimpleNamespace()))
    assert not notebook.is_here(), "IPython on a terminal"
    monkeypatch.delitem(sys.modules, "IPython")
    assert not notebook.is_here()


def test_what_comes_too_soon_waits(shown):
    now = [0.0]
    cell = notebook.Cell(lambda: now[0])
    cell.show("one")
    cell.show("two")
    assert shown == ["one"]
    now[0] = notebook.SECONDS
    cell.show("three")
    cell.show("four")
    assert shown == ["one", "three"]
    cell.flush()
    cell.flush()
    assert shown == ["one", "three", "four"]


def test_counts_and_jobs_are_shown_to_the_end(shown):
    with notebook.screen().bar() as report:
        assert report is not None
        report("samples read", 1, 0)
        report("samples read", 4000, 5000)
    assert shown == ["samples read: 1", "samples read: 4,000 of 5,000"]
    with notebook.screen().table() as watch:
        watch([])
    assert "all" in shown[-1]
