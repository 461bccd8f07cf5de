from pathlib import Path

from atoll import config, plan
from atoll.plan import printed

RECIPES = Path(__file__).parents[2] / "recipes"


def test_sentences_name_what_matters():
    text = plan.sentences(plan.plan(config.load(RECIPES / "laion-24gb.toml")))
    for word in (
        "expert 0 to expert 7",
        "router",
        "605.7 M",
        "11,000,000 samples",
        "fits",
        "40% utilisation",
    ):
        assert word in text


def test_short_times_are_minutes():
    assert printed._hours(1234.5) == "1,234.5 hours"
    assert printed._hours(0.5) == "30.0 minutes"
