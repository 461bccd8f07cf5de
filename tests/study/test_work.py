"""One training of a study, in a process of its own that is told by a file."""

import sys

from atoll.study import cells as room
from atoll.study import work
from atoll.study.cells import Workshop
from atoll.study.design import Study
from tests.study.test_driving import study_of


def test_a_study_is_the_same_after_its_way_through_a_file(tmp_path):
    study = study_of(tmp_path)
    (tmp_path / "resolved.json").write_text(study.resolved())
    again = Study.read(tmp_path / "resolved.json")
    assert again == study


def test_a_worker_does_one_training(tmp_path, monkeypatch):
    shop = Workshop(study_of(tmp_path))
    cells = shop.cells()
    room.prepare(shop, cells)
    job = room.trainings(shop, cells)[0]
    monkeypatch.setattr(sys, "argv", job.spec.arguments())
    work.main()
    assert job.name not in {one.name for one in room.trainings(shop, cells)}
