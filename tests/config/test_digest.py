"""Digests of settings: a new key makes no old run stale, a changed default does."""

import json
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import Field

from atoll.config import (
    ExpertConfig,
    FewStepConfig,
    NetworkConfig,
    RouterConfig,
    RunConfig,
    SampleConfig,
    Section,
    SitesConfig,
    StudentConfig,
)
from atoll.config import digest as room
from atoll.config.digest import (
    DEFAULTS,
    ELSEWHERE,
    OPERATIONAL,
    defaults,
    differing,
    operational,
    settings_digest,
)
from atoll.errors import StaleError
from atoll.runs import Run, Stage, inputs, shown
from atoll.runs.inputs import expert_from
from atoll.runs.records import Contents

KNOWN = Path(__file__).with_name("defaults.json")
"""The defaults of this version; keys are added to it, and changed with the version alone."""


class NewerExpert(ExpertConfig):
    """The expert of next year's program, with keys that this one does not know."""

    sharpness: float = 0.5
    schedule: Literal["flat", "steep"] = "flat"
    buffers: Annotated[int, OPERATIONAL] = Field(8, ge=1)


class NewerRun(RunConfig):
    expert: NewerExpert = NewerExpert()


class NewerNetwork(NetworkConfig):
    sharpness: float = 0.5


class NewerFew(FewStepConfig):
    sharpness: float = 0.5


class NewerSites(SitesConfig):
    patience: int = 3


class NewerStudent(StudentConfig, NewerNetwork):
    few: Annotated[NewerFew | None, ELSEWHERE] = None
    sites: Annotated[NewerSites | None, ELSEWHERE] = None


class NewerSample(SampleConfig):
    eagerness: float = 0.5


class NewestRun(RunConfig):
    student: NewerStudent | None = None
    sample: NewerSample = NewerSample()


def finished_expert(run: Run) -> Stage:
    """An old run's expert, made from what was asked of it."""
    cluster = run.cluster(0)
    cluster.begin({})
    cluster.finish({}, [], Contents())
    stage = Stage(run.path / "experts" / "00")
    stage.begin(expert_from(run, 0))
    stage.finish(expert_from(run, 0), [], Contents())
    return stage


def test_a_new_key_with_a_default_leaves_an_old_run_current():
    expert: dict[str, Any] = {"width": 64, "heads": 2, "lr": 1e-3}
    old = Run.create(RunConfig.model_validate({"name": "old", "expert": expert}))
    stage = finished_expert(old)

    def inputs(**more: Any) -> dict[str, Any]:
        newer = NewerRun.model_validate({"name": "old", "expert": {**expert, **more}})
        assert "sharpness" in newer.model_dump()["expert"]
        return expert_from(Run(old.path, newer), 0)

    assert stage.current(inputs())
    assert stage.current(inputs(buffers=3, log_every=7)), "how work is done changes nothing"
    with pytest.raises(StaleError, match="other settings"):
        stage.current(inputs(sharpness=0.7))


STUDENT: dict[str, Any] = {"width": 24, "guidance": 2.0, "few": {"steps": 3}, "sites": {"inner": 2}}
SAMPLE = {"steps": 4, "prompts": ["a boat"]}


@pytest.mark.parametrize(
    ("function", "student", "sample", "others"),
    [
        (shown.samples_from, {}, {"eagerness": 0.7}, [{"batch": 7, "resident": 1}]),
        (lambda run: inputs.drawn_from(run, 0), {}, {"steps": 5}, [{"num": 7}, {"eagerness": 0.7}]),
        (inputs.few_step_from, {"sharpness": 0.7}, {}, [{"steps": 5}]),
        (inputs.few_step_from, {"few": {"steps": 3, "sharpness": 0.7}}, {}, []),
        (inputs.student_from, {"sites": {"inner": 2, "patience": 4}}, {}, [{"steps": 5}]),
        (inputs.begun_from, {"sites": {"inner": 2, "patience": 4}}, {}, [{"steps": 5}]),
        (inputs.begun_from, {"sharpness": 0.7}, {}, []),
    ],
    ids=["samples", "drawn", "network", "few", "student", "sites", "begun"],
)
def test_new_keys_leave_all_that_follows_current(function, student, sample, others, finished, monkeypatch):
    """Samples and students too: what is said in this program's keys is the same in next year's."""
    base = finished.config.model_dump(exclude={"student", "sample"})
    old = RunConfig.model_validate({**base, "student": STUDENT, "sample": SAMPLE})
    monkeypatch.setattr(Run, "student", property(lambda run: run.expert(0)))
    before = function(Run(finished.path, old))
    monkeypatch.setattr(inputs, "NetworkConfig", NewerNetwork)

    def now(**more: Any) -> dict[str, Any]:
        tree = {**base, "student": STUDENT | more.get("student", {}), "sample": SAMPLE | more["sample"]}
        return function(Run(finished.path, NewestRun.model_validate(tree)))

    assert now(sample={}) == before
    assert all(now(sample=other) == before for other in others), "of no concern here"
    assert now(student=student, sample=sample) != before


def test_clusters_of_sites_are_the_same_named_or_not(finished):
    def sites(**given: Any) -> dict[str, Any]:
        tree = {**finished.config.model_dump(), "student": {"sites": given}}
        return inputs.student_from(Run(finished.path, RunConfig.model_validate(tree)))

    assert sites() == sites(clusters=[[0], [1], [2]]) != sites(clusters=[[0, 1], [2]])


def test_another_version_of_the_defaults_is_another_digest(monkeypatch):
    before = settings_digest(ExpertConfig())
    monkeypatch.setattr(room, "DEFAULTS", DEFAULTS + 1)
    assert settings_digest(ExpertConfig()) != before


def changed_defaults(known: dict[str, Any], now: dict[str, Any], prefix: str = "") -> list[str]:
    """Keys that are known and have another default now; keys that are new are not among them."""
    changed = []
    for key in known:
        old, new = known[key], now.get(key, "gone")
        if isinstance(old, dict) and isinstance(new, dict):
            changed += changed_defaults(old, new, f"{prefix}{key}.")
        elif old != new:
            changed.append(f"{prefix}{key}")
    return changed


def all_defaults() -> dict[str, Any]:
    sections = (RunConfig, StudentConfig, FewStepConfig, SitesConfig)
    return json.loads(json.dumps({section.__name__: defaults(section) for section in sections}))


def test_a_changed_default_needs_a_new_version():
    """Else a finished run would pass for what a recipe now means; write the file anew with the version."""
    known = json.loads(KNOWN.read_text())
    assert known["version"] == DEFAULTS
    assert changed_defaults(known["defaults"], all_defaults()) == []


def test_a_changed_default_would_be_found():
    assert changed_defaults({"a": {"b": 1, "c": 2}}, {"a": {"b": 1, "c": 3, "d": 4}}) == ["a.c"]
    assert changed_defaults({"a": {"b": 1}}, {"a": {}}) == ["a.b"]


def test_only_what_differs_counts():
    assert differing(ExpertConfig()) == {}
    assert differing(ExpertConfig(lr=1e-3, log_every=7, init="somewhere")) == {"lr": 1e-3}
    assert settings_digest(ExpertConfig(lr=1e-4)) == settings_digest(ExpertConfig()), "a default said aloud"
    assert settings_digest(RouterConfig(width=192)) == settings_digest(RouterConfig())


def test_a_section_that_may_be_left_out_counts_even_if_it_is_empty():
    class Inner(Section):
        depth: int = 3

    class Outer(Section):
        inner: Inner | None = None

    digests = {settings_digest(Outer(inner=inner)) for inner in (None, Inner(), Inner(depth=4))}
    assert len(digests) == 3


def test_operational_keys_are_marked_on_their_fields():
    machine = {"micro_batch", "compile", "recompute", "parallel", "log_every", "save_every", "keep"}
    machine |= {"milestone_every", "holdout_every", "preview_every", "tracking"}
    assert operational(RouterConfig) == machine
    assert operational(StudentConfig) == machine | {"resident"}


@given(st.floats(1e-6, 1), st.integers(1, 99), st.booleans())
def test_the_digest_is_a_function_of_what_is_asked(lr, steps, recompute):
    one = ExpertConfig(lr=lr, steps=steps)
    assert settings_digest(one) == settings_digest(ExpertConfig(steps=steps, lr=lr, recompute=recompute))
    assert settings_digest(one) != settings_digest(ExpertConfig(lr=lr, steps=steps + 1))
