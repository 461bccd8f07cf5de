from atoll.runs import graph
from atoll.runs.survey import survey


def test_an_expert_from_elsewhere_becomes_a_stage(finished, prepared):
    run = prepared(f"expert.init='{finished.expert(1).path}'")
    node = graph.node(run, "init 0")
    stage = node.make()
    assert stage.digest == finished.expert(1).digest
    assert (
        stage.verify("weights.safetensors").read_bytes()
        == (finished.expert(1).path / "weights.safetensors").read_bytes()
    )
    assert node in survey(run).done
    assert [one.name for one in graph.node(run, "expert 2").reads] == ["cluster 2", "init 0"]


def test_the_same_folder_is_taken_once(finished, prepared):
    other = finished.expert(2).path
    run = prepared(
        f"expert.init='{finished.expert(1).path}'", f"expert.override=[{{clusters=[2], init='{other}'}}]"
    )
    assert [node.name for node in graph.nodes(run) if node.kind.name == "init"] == ["init 0", "init 1"]
    assert graph.node(run, "expert 2").reads[1].name == "init 1"
