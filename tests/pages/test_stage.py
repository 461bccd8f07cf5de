from atoll.pages import stage as room
from atoll.runs.records import ReportContents
from atoll.sampling import stage as samples


def test_the_page_of_a_run_is_a_stage(finished):
    samples.draw(finished)
    stage = room.write(finished)
    assert list(stage.record.files) == ["report.html"]
    assert stage.contents == ReportContents(report="report.html")
    before = (stage.path / "report.html").stat().st_mtime_ns
    room.write(finished)
    assert (stage.path / "report.html").stat().st_mtime_ns == before
