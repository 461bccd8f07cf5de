from atoll.train import distil

FEW = {"steps": 2, "trajectories": 0, "batch": 8}


def test_every_student_of_the_recipe_in_turn(taught):
    run = taught(few=FEW)
    assert [stage.path for stage in distil.distil(run)] == [run.student.path, run.few_step.path]
    assert run.few_step.done


def test_only_what_the_recipe_asks_for(taught):
    run = taught(steps=0, few={**FEW, "teacher": "label", "init": "expert"})
    assert [stage.path for stage in distil.distil(run)] == [run.few_step.path]
    run = taught()
    assert [stage.path for stage in distil.distil(run)] == [run.student.path]
