from atoll.runs import Run, graph
from atoll.runs.records import SampledContents
from atoll.sampling import stage as room


def test_samples_of_a_run_are_a_stage(finished):
    stage = room.draw(finished)
    assert stage.done
    assert {"samples.npy", "samples.json", "grid.png"} <= set(stage.record.files)
    contents = stage.contents
    assert isinstance(contents, SampledContents)
    assert (contents.samples, contents.grid) == ("samples.npy", "grid.png")
    assert sum(contents.makers.values()) == contents.done == finished.config.sample.num
    assert str(finished.path.parent) not in (stage.path / "done.json").read_text(), "a run may move"
    before = {path: path.stat().st_mtime_ns for path in stage.path.iterdir()}
    room.draw(finished)
    assert {path: path.stat().st_mtime_ns for path in stage.path.iterdir()} == before, "drawn once"
    more = finished.config.sample.model_copy(update={"num": 7})
    other = Run(finished.path, finished.config.model_copy(update={"sample": more}))
    assert graph.node(other, "samples").made_from() != stage.record.made_from
