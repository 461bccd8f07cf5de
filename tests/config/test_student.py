"""[student], [student.few], [student.sites]: who may teach whom."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from atoll.config import FewStepConfig, SitesConfig, StudentConfig


def refused(model, match, **tree):
    with pytest.raises(ValidationError, match=match):
        model.model_validate(tree)


def test_without_steps_there_must_be_a_few_step_one_that_learns_from_others():
    refused(StudentConfig, r"add \[student.few\], or some steps", steps=0)
    refused(StudentConfig, "no dense student to learn from", steps=0, few={})
    refused(StudentConfig, "no dense student to learn from", steps=0, few={"teacher": "label"})
    few = {"teacher": "label", "init": "average"}
    assert StudentConfig.model_validate({"steps": 0, "few": few}).few.init == "average"


def test_sites_have_only_their_own_experts():
    refused(StudentConfig, "leave student.teacher at 'label'", teacher="ensemble", sites={})
    assert StudentConfig.model_validate({"sites": {}}).sites == SitesConfig()


def test_differences_of_times_need_float32():
    refused(FewStepConfig, "must be 'float32'", precision="bfloat16")
    assert FewStepConfig().precision == "float32"


def test_no_steps_leave_it_at_trajectories_of_which_there_must_be_some():
    refused(FewStepConfig, "leaves it at trajectories", steps=0, trajectories=0)
    refused(FewStepConfig, "leaves it at trajectories", steps=0, method="progressive")
    assert FewStepConfig(steps=0).trajectories > 0


@pytest.mark.parametrize("teacher", ["label", "sampled"])
def test_halving_needs_a_teacher_that_knows_points_off_the_data(teacher):
    refused(FewStepConfig, "set student.few.teacher to", method="progressive", teacher=teacher)


@given(st.integers(2, 130), st.integers(1, 20))
def test_halving_must_come_out_even(grid, fewest):
    ends, steps = False, grid
    while steps % 2 == 0 and not ends:
        steps //= 2
        ends = steps == fewest
    tree = {"method": "progressive", "grid": grid, "fewest": fewest}
    if ends:
        assert FewStepConfig.model_validate(tree).grid == grid
    else:
        refused(FewStepConfig, "make their ratio 2, 4, 8", **tree)


def test_sites_move_about_as_far_as_their_mean_by_default():
    config = SitesConfig()
    assert config.outer_lr / (1 - config.momentum) == pytest.approx(1)
    refused(SitesConfig, "momentum", momentum=1.0)
