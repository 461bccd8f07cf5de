from atoll.train import distil


def test_every_student_of_the_recipe_in_turn(taught):
    run = taught()
    assert [stage.path for stage in distil.distil(run)] == [run.student.path]
    assert run.student.done
