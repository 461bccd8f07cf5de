"""Records are parsed at the door: what is right comes back as it was, what is wrong is told in words."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atoll.errors import CorruptError, RunError
from atoll.runs import Stage, read_json, write_json
from atoll.runs.chosen import GuidanceContents
from atoll.runs.components import ComponentContents
from atoll.runs.evaluations import EvaluationContents
from atoll.runs.parsing import REMEDY, VERSION
from atoll.runs.records import (
    ClusterContents,
    Contents,
    DataContents,
    DrawnContents,
    ExpertContents,
    FewStepContents,
    ImportedContents,
    MergedContents,
    NetworkContents,
    PartitionContents,
    ReportContents,
    RouterContents,
    SampledContents,
    SiteContents,
    StageRecord,
    StartContents,
    StudentContents,
    TextFormat,
    parse_record,
    parse_started,
)
from atoll.runs.seen import FeaturesContents
from atoll.runs.shared import SharedNetworkContents

SHA = "0123456789abcdef" * 4
SAMPLES: dict[str, Any] = {
    **{
        "kind": "image",
        "dtype": "uint8",
        "mean": (127.5,),
        "std": (127.5,),
        "shape": (1, 8, 8),
        "group": 500,
    },
    **{"rows": 30, "class_names": ("bag", "boot"), "text": TextFormat(model="clip", tokens=77, width=8)},
}
SHARED: dict[str, Any] = {**SAMPLES, "classes": 2, "clusters": 2, "priors": (0.5, 0.5)}
CLUSTER: dict[str, Any] = {
    **SHARED,
    **{"cluster": 1, "prior": 0.5, "bytes": 99, "parts": (("part-0.parquet", 20), ("part-1.parquet", 10))},
}

EXAMPLES: list[Contents] = [
    DataContents(**SAMPLES, bytes=99, parts=(("part-0.parquet", 30),), features="pixels", skipped=2),
    PartitionContents(
        **SHARED, method="features", features="pixels", sizes=(15, 15), labels=((15, 0), (0, 15)), nmi=1.0
    ),
    ClusterContents(**CLUSTER),
    DrawnContents(**CLUSTER),
    ExpertContents(steps=3, rows=9),
    StartContents(steps=3, rows=9),
    SharedNetworkContents(steps=3, rows=9, below=0.5),
    GuidanceContents(guidance=1.5, distances=((1.0, 9.0), (1.5, 7.0), (2.0, 8.0))),
    FeaturesContents(rows=9, width=32, block=2, time=0.4),
    ComponentContents(steps=3, rows=9, name="mine", samples=SAMPLES, prototypes=4, labels=(4, 5), drawn=2),
    RouterContents(steps=3, rows=9, band=(0.2, 0.8)),
    ImportedContents(recipe="[expert]", parameters=12),
    StudentContents(steps=3, rows=9, taught_by=8, rounds=2),
    FewStepContents(steps=3, rows=9, taught_by=8),
    SiteContents(steps=3, rows=9),
    MergedContents(steps=3, round=0),
    SampledContents(
        **{"samples": "samples.npy", "grid": "grid.png", "num": 3, "done": 2, "experts": (1, 0)},
        **{"makers": {"0": 1, "1": 1}, "strategy": "ancestral", "strategy_asked": "auto", "networks": 2},
        **{"certainty": 0.5, "asked": {"class": ("bag", "boot")}},
    ),
    ReportContents(report="report.html"),
    EvaluationContents(evaluation="evaluation.json"),
]


def record_of(contents: Contents) -> dict[str, Any]:
    return StageRecord.of({"seed": 1, "data": SHA}, {"weights.safetensors": SHA}, contents).facts()


@pytest.mark.parametrize("contents", EXAMPLES, ids=lambda contents: contents.STAGE)
def test_what_is_written_is_read_as_it_was(contents):
    written = json.loads(json.dumps(record_of(contents)))
    record = parse_record(written, "done.json")
    assert record.contents == contents
    assert type(record.contents) is type(contents), "a student says that it is one"
    assert record.kind == written["kind"] == contents.STAGE
    assert record.facts() == written
    assert (record.version, record.made_from["seed"]) == (VERSION, 1)


def test_every_kind_has_an_example():
    assert {type(contents) for contents in EXAMPLES} == set(Contents.KINDS.values())
    assert set(Contents.KINDS) == {contents.STAGE for contents in EXAMPLES}


def test_files_of_samples_are_names_in_their_own_folder(tmp_path):
    contents = next(contents for contents in EXAMPLES if isinstance(contents, SampledContents))
    facts = contents.at(tmp_path)
    assert (facts["samples"], facts["grid"]) == (str(tmp_path / "samples.npy"), str(tmp_path / "grid.png"))
    assert (facts["class"], facts["folder"]) == (["bag", "boot"], str(tmp_path))
    assert facts["provenance"] is None
    for elsewhere in ("/etc/samples.npy", "../samples.npy"):
        written = replaced(record_of(contents), ("contents", "samples"), elsewhere)
        with pytest.raises(CorruptError, match="hidden or elsewhere"):
            parse_record(written, "done.json")


def paths(value: Any, prefix: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The place of every value inside of a JSON value."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [prefix, *(path for key, each in inner for path in paths(each, (*prefix, key)))]


def replaced(value: Any, path: tuple[Any, ...], by: Any) -> Any:
    if not path:
        return by
    copy = dict(value) if isinstance(value, dict) else list(value)
    copy[path[0]] = replaced(value[path[0]], path[1:], by)
    return copy


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=8,
)


@given(json_values)
def test_any_value_in_place_of_a_record_is_parsed_or_refused(value):
    for parse in (parse_record, parse_started):
        with pytest.raises(RunError, match="done.json"):
            parse(value, "done.json")


@given(st.data())
def test_any_value_inside_of_a_record_is_parsed_or_refused(data):
    written = json.loads(json.dumps(record_of(data.draw(st.sampled_from(EXAMPLES)))))
    path = data.draw(st.sampled_from(paths(written)))
    changed = replaced(written, path, data.draw(json_values))
    try:
        record = parse_record(changed, "done.json")
    except RunError as error:
        assert "done.json" in str(error)
        assert "\n" not in str(error)
        return
    assert parse_record(record.facts(), "again") == record


@given(st.data())
def test_a_record_without_a_key_is_parsed_or_refused(data):
    written = json.loads(json.dumps(record_of(data.draw(st.sampled_from(EXAMPLES)))))
    inside = data.draw(st.sampled_from([written, written["contents"]]))
    if not inside:
        return
    inside.pop(data.draw(st.sampled_from(sorted(inside))))
    try:
        parse_record(written, "done.json")
    except CorruptError as error:
        assert REMEDY in str(error)


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (("version",), 7, r"newer Atoll \(records of version 7, this one reads 1\); upgrade atoll"),
        (("version",), None, "has no version that is known here"),
        (("version",), True, "has no version that is known here"),
        (("version",), "1", "has no version that is known here"),
        (("files",), {"../weights": SHA}, "hidden or elsewhere"),
        (("files",), {"/etc/passwd": SHA}, "hidden or elsewhere"),
        (("files",), {"done.json": SHA}, "done.json.*of the record itself"),
        (("files",), {"a": "short"}, "'files.a'"),
        (("contents", "rows"), "30", "'rows'"),
        (("contents", "rows"), True, "'rows'"),
        (("contents", "rows"), -1, "'rows'"),
        (("contents", "std"), [0.0], "'std.0'"),
        (("contents", "mean"), [float("nan")], "'mean.0'"),
        (("contents", "mean"), [1.0, 2.0], "different lengths"),
        (("contents", "parts"), [["../x", 30]], "hidden or elsewhere"),
        (("contents", "parts"), [["x", 29]], "do not add up to 30"),
        (("contents", "cluster"), 2, "cluster 2 of 2"),
        (("contents", "priors"), [1.0], "1 priors for 2 clusters"),
        (("contents",), {"rows": 3}, "contents is damaged"),
        (("kind",), 3, "'kind'"),
        (("made_from",), [], "'made_from'"),
        (("more",), 1, "'more'"),
    ],
)
def test_what_is_wrong_is_named(path, value, message):
    written = json.loads(json.dumps(record_of(ClusterContents(**CLUSTER))))
    if path == ("more",):
        written["more"] = 1
    with pytest.raises(RunError, match=message):
        parse_record(replaced(written, path, value), "there/done.json")


def test_values_nested_without_end_are_refused():
    deep: list[Any] = []
    for _ in range(20_000):
        deep = [deep]
    written = record_of(ExpertContents())
    with pytest.raises(CorruptError):
        parse_record({**written, "made_from": {"a": deep}}, "done.json")


def test_deep_json_on_disk_is_refused(tmp_path):
    stage = Stage(tmp_path)
    (tmp_path / "done.json").write_text("[" * 100_000)
    with pytest.raises(CorruptError, match="damaged"):
        _ = stage.record


def test_a_kind_that_nobody_knows_keeps_its_values():
    written = {**record_of(Contents(rows=3)), "kind": "next year's"}
    record = parse_record(written, "done.json")
    assert record.contents.facts() == {"rows": 3}
    assert record.kind == "next year's"
    assert record.facts() == written


def test_a_stage_of_another_kind_is_refused(tmp_path):
    Stage(tmp_path).finish({}, [], StudentContents(taught_by=3))
    assert Stage(tmp_path, StudentContents).contents.taught_by == 3
    assert Stage(tmp_path, NetworkContents).contents.steps == 0
    with pytest.raises(RunError, match="holds a stage of kind 'student', not 'partition'"):
        _ = Stage(tmp_path, PartitionContents).contents


def test_a_damaged_record_on_disk_names_its_file(tmp_path):
    stage = Stage(tmp_path)
    stage.finish({}, [], ExpertContents(steps=3))
    written = read_json(tmp_path / "done.json")
    write_json(tmp_path / "done.json", {**written, "contents": {"steps": "three"}})
    with pytest.raises(
        CorruptError, match=r"done\.json: contents is damaged \('steps': .*\); make its stage anew"
    ):
        _ = stage.contents
    write_json(tmp_path / "started.json", {"version": 1, "made_from": 3})
    (tmp_path / "done.json").unlink()
    with pytest.raises(CorruptError, match=r"started\.json is damaged"):
        stage.begin({})
