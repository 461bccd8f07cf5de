"""What is final, by hand on small lines and by a second definition on random ones."""

from hypothesis import given
from hypothesis import strategies as st

from atoll.net.verification import finality
from atoll.net.verification.finality import Segment
from atoll.net.verification.policy import AuditPolicy

RULES = AuditPolicy(window=100.0)


def line(*kinds: str, at: float = 0.0) -> list[Segment]:
    """A lineage: `a` audited, `-` accepted, `x` rejected."""
    return [
        Segment(
            str(i), str(i - 1) if i else None, "rejected" if kind == "x" else "accepted", kind == "a", at, "w"
        )
        for i, kind in enumerate(kinds)
    ]


def final(kinds: str, now: float = 50.0) -> str:
    names = finality.final(line(*kinds), RULES, now)
    return "".join("f" if str(i) in names else "." for i in range(len(kinds)))


def test_lines_by_hand():
    assert final("a") == "f"
    assert final("-") == "."
    assert final("-", now=100.0) == "f"
    assert final("-a") == ".."  # one audited descendant is not enough, and no child is before its parent
    assert final("-aa") == "fff"
    assert final("a-aa") == "ffff"
    assert final("aax") == "ff."
    assert final("axaa") == "f..."
    assert final("axaa", now=1000.0) == "f..."
    assert (
        final("--a-a-") == "fff..."
    )  # the fourth has one audited follower, and what follows it waits for it


def test_what_follows_a_rejected_one_is_void():
    assert finality.void(line(*"aaxa-")) == {"2", "3", "4"}


def test_branches_are_judged_apart():
    left = line(*"aa")
    right = [Segment("r", "0", "rejected"), Segment("s", "r", audited=True)]
    assert finality.void([*left, *right]) == {"r", "s"}
    assert finality.final([*left, *right], RULES, 0.0) == {"0", "1"}


def test_what_is_owed_before_publishing_is_all_that_the_publisher_has_not_seen():
    assert finality.owed(line(*"-a--a"), "4", {"1", "4"}) == ["0", "2", "3"]
    assert finality.owed(line(*"-a--a"), "1") == ["0", "1"]


def test_of_who_was_found_out_all_is_doubtful():
    segments = [*line(*"-ax-"), Segment("b", None, account="other")]
    assert finality.doubtful(segments, "w") == ["0", "3"]


@given(st.lists(st.sampled_from("a-x"), min_size=1, max_size=10), st.floats(0, 200))
def test_final_by_a_second_definition(kinds, now):
    names = finality.final(line(*kinds), RULES, now)
    for i in range(len(kinds)):
        whole = kinds[: i + 1]
        expected = "x" not in whole
        for j in range(i + 1):
            alive = kinds[: kinds.index("x")] if "x" in kinds else kinds
            later = alive[j + 1 :].count("a")
            expected &= kinds[j] == "a" or later >= 2 or now >= 100.0
        assert (str(i) in names) == expected
