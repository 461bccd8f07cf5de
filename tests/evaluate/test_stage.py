"""Measurements as a stage: asked for by the recipe, in the words of `atoll evaluate`, without the time."""

from atoll.config import validate
from atoll.evaluate import evaluation, stage
from atoll.runs import Run, graph
from atoll.runs.evaluations import EvaluationContents, read_evaluation

QUICK = {"at_end": True, "num": 8, "features": ["pixels"], "reference": 64, "bootstrap": 2, "routing": 0}


def measuring(run):
    """The same run, which measures itself."""
    tree = run.config.model_dump(mode="json")
    return Run(run.path, validate({**tree, "evaluate": {**tree["evaluate"], **QUICK}}, "a test"))


def test_a_run_measures_itself_once_and_keeps_what_others_measure_later(finished):
    assert "evaluation" not in {node.name for node in graph.made(finished)}, "only where it is asked for"
    run = measuring(finished)
    names = [node.name for node in graph.made(run)]
    assert names.index("samples") < names.index("evaluation") < names.index("report")
    node = graph.node(run, "evaluation")
    made = node.make()
    assert made.contents == EvaluationContents(evaluation="evaluation.json") and made.done
    (row,) = read_evaluation(run).measured.values()
    assert row.num == 8 and list(row.features) == ["pixels"] and row.seconds == {}
    before = (made.path / "evaluation.json").stat().st_mtime_ns
    assert node.make().done and (made.path / "evaluation.json").stat().st_mtime_ns == before
    record = {**stage.timeless(evaluation.measure(run)), "strategies": {}}
    assert len(evaluation.with_earlier(run, record)["measured"]) == 1, "what the stage found is kept"


def test_other_samples_or_another_question_are_another_measurement(finished):
    run = measuring(finished)
    node = graph.node(run, "evaluation")
    tree = run.config.model_dump(mode="json")

    def made_from(section, **changes):
        changed = validate({**tree, section: {**tree[section], **changes}}, "a test")
        return graph.node(Run(run.path, changed), "evaluation").made_from()

    assert made_from("evaluate", num=9) != node.made_from() != made_from("sample", steps=17)
    assert made_from("sample", batch=3) == node.made_from(), "how work is done changes nothing"
