"""What a parent does besides being asked; what becomes of its jobs is in test_warm."""

import sys
import threading

import pytest

from atoll.launch import forking, warm

pytestmark = pytest.mark.skipif(not warm.FORKS, reason="forks are not sound here")


def test_it_sees_threads_whoever_started_them():
    before = forking.has_threads()
    ended = threading.Event()
    other = threading.Thread(target=ended.wait)
    other.start()
    try:
        assert forking.has_threads()
    finally:
        ended.set()
        other.join()
    assert forking.has_threads() == before


def test_what_cannot_be_imported_is_left_to_the_job(tmp_path, monkeypatch):
    (tmp_path / "broken_module.py").write_text("raise ValueError('broken')")
    monkeypatch.syspath_prepend(str(tmp_path))
    forking._load(["broken_module", "no_such_module"])
    assert not {"broken_module", "no_such_module"} & set(sys.modules)


def test_what_a_library_imports_later_is_imported_with_it(monkeypatch):
    monkeypatch.delitem(sys.modules, "colorsys", raising=False)
    monkeypatch.setattr(forking, "LATER", {"a_library": "colorsys"})
    forking._load(["json"])
    assert "colorsys" not in sys.modules
    monkeypatch.setitem(sys.modules, "a_library", sys)
    forking._load([])
    assert "colorsys" in sys.modules


def test_torch_imports_with_its_first_optimiser_what_is_imported_beforehand():
    import torch

    torch.optim.AdamW([torch.zeros(1)])
    assert forking.LATER["torch"] in sys.modules


def test_its_name_is_not_cut_off():
    assert len(forking.NAME.encode()) <= 15
