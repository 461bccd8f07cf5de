import pytest
from benchmarks.saves import Line

from atoll import config
from benchmarks import saves


@pytest.mark.parametrize("late", [False, True])
def test_what_a_save_costs_is_found_before_or_after_its_line(late):
    """Windows of 4 steps at a second each; a save at 20 and 40 costs three, in this window or the next."""
    now, lines = 0.0, []
    for step in range(4, 61, 4):
        now += 4.0
        saved = (step - 4 if late else step) % 20 == 0 and step > 4
        now += 3.0 if saved else 0.0
        lines.append(Line(step, now))
    assert saves.stalls(lines, 20)[:2] == [pytest.approx(3.0), pytest.approx(3.0)]


def test_the_recipe_is_one(tmp_path):
    path = tmp_path / "saves.toml"
    path.write_text(saves.recipe(saves.SMALL, 4, window=2, ranks=2))
    run = config.load(path)
    assert run.launch.gpus == 2
    assert run.expert.save_every == 10
    assert run.expert.steps == 10 * saves.SAVES + 4


def test_a_card_gets_a_network_that_fits():
    size, batch = saves.for_a_card(80e9)
    assert (size, batch) == ({"size": "XL/2"}, 32)
