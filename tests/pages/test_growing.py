"""The report shows some previews of each job, the first and the last among them."""

import shutil

from PIL import Image

from atoll.pages import growing, report
from atoll.runs import previews
from atoll.sampling import sample


def test_some_of_many():
    assert growing._some([1, 2]) == [1, 2]
    assert growing._some(list(range(1, 101))) == [1, 21, 41, 60, 80, 100]


def test_they_are_on_the_page(finished, tmp_path):
    folder = finished.path / "experts"
    source = folder.resolve()
    folder.unlink()
    shutil.copytree(source, folder)
    assert growing.rows(finished) == []
    for step in range(1, 9):
        path = previews.path_of(finished.expert(1).path, 1000 * step)
        path.parent.mkdir(exist_ok=True)
        Image.new("L", (16, 2), step).save(path)
    rows = growing.rows(finished)
    assert [row["name"] for row in rows] == ["expert 1"]
    assert [one["step"] for one in rows[0]["pictures"]][:: growing.MOST - 1] == [1000, 8000]
    sample.sample(finished, tmp_path / "s")
    page = report.write_report(finished, tmp_path / "s").read_text(encoding="utf-8")
    assert "previews of expert 1 after 8000 steps" in page
