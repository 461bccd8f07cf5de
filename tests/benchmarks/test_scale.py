import contextlib
import json

from atoll import config
from atoll.errors import Interrupted
from atoll.runs import Run, graph
from benchmarks import _asleep


def sleeping(tmp_path, monkeypatch, steps):
    monkeypatch.setenv(_asleep.TALLY, str(tmp_path))
    monkeypatch.setattr(_asleep, "STEP_SECONDS", 0.0)
    monkeypatch.setattr(graph, "KINDS", _asleep.KINDS)
    tree = {"name": "asleep", "partition": {"clusters": 3}, "expert": {"steps": steps}}
    return Run(tmp_path / "asleep", config.validate(tree, "a test"))


def test_a_sleeper_is_a_stage_like_all_others(tmp_path, monkeypatch):
    run = sleeping(tmp_path, monkeypatch, 25)
    nodes = graph.nodes(run)
    assert [node.name for node in nodes] == ["expert 0", "expert 1", "expert 2"]
    assert all(node.is_job for node in nodes)
    nodes[1].make()
    assert nodes[1].stage.done
    assert not nodes[0].stage.done
    assert len((tmp_path / "01").read_text().split()) == 25
    nodes[1].make()
    assert len((tmp_path / "01").read_text().split()) == 25, "finished is finished"


def test_what_was_slept_by_a_save_is_not_slept_again(tmp_path, monkeypatch):
    run = sleeping(tmp_path, monkeypatch, 25)
    node = graph.nodes(run)[0]
    saves: list[int] = []

    def dying(folder, step):
        save(folder, step)
        saves.append(step)
        if step == 20:
            raise Interrupted("lost")

    save = _asleep.save
    monkeypatch.setattr(_asleep, "save", dying)
    with contextlib.suppress(Interrupted):
        node.make()
    pointer = json.loads((node.stage.path / "state" / "latest.json").read_text())
    assert (saves, pointer["step"]) == ([10, 20], 20)
    node.make()
    assert node.stage.done
    assert len((tmp_path / "00").read_text().split()) == 25
