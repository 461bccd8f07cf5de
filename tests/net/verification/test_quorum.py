"""Agreement of copies against an enumeration by hand."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atoll.net.verification import quorum
from atoll.net.verification.quorum import Agreement, Copy


def alike(left: Copy, right: Copy) -> bool:
    """Digests here are numbers; they agree if they are within one."""
    return abs(int(left.digest) - int(right.digest)) <= 1


def copies(*digests: int, accounts: str = "abcdefgh") -> list[Copy]:
    return [Copy(account, str(digest)) for account, digest in zip(accounts, digests, strict=False)]


@pytest.mark.parametrize(
    ("digests", "agreement"),
    [
        ((), Agreement(missing=2)),
        ((5,), Agreement(missing=1)),
        ((5, 5), Agreement(0, (0, 1))),
        ((5, 6), Agreement(0, (0, 1))),
        ((5, 9), Agreement(missing=1)),
        ((5, 9, 9), Agreement(1, (1, 2), (0,))),
        ((5, 9, 5), Agreement(0, (0, 2), (1,))),
        ((1, 5, 9), Agreement(missing=1)),
        ((1, 5, 9, 13, 17), Agreement(hopeless=True)),
    ],
)
def test_two_decide_and_a_third_where_they_differ(digests, agreement):
    assert quorum.decide(copies(*digests), alike) == agreement


def test_one_owner_counts_once():
    assert quorum.decide(copies(5, 5, accounts="aa"), alike) == Agreement(missing=1)
    assert quorum.decide(copies(5, 5, 5, accounts="aab"), alike) == Agreement(0, (0, 2))


def test_one_network_counts_once():
    pair = [Copy("a", "5", "192.0.2"), Copy("b", "5", "192.0.2")]
    assert quorum.decide(pair, alike) == Agreement(missing=1)
    assert not quorum.independent(pair[:1], "b", "192.0.2")
    assert not quorum.independent(pair[:1], "a", "198.51.100")
    assert quorum.independent(pair[:1], "b", "198.51.100")
    assert quorum.independent([Copy("a", "5")], "b")


def test_a_tolerance_is_no_chain_of_neighbours():
    """5 is near 6 and 6 near 7, but three must be near one of them."""
    assert quorum.decide(copies(5, 6, 7), alike, quorum=3).canonical == 1
    assert quorum.decide(copies(5, 6, 7, 8), alike, quorum=4) == Agreement(missing=1)


@given(st.lists(st.tuples(st.sampled_from("abcd"), st.integers(0, 6)), max_size=4))
def test_what_is_taken_has_the_votes_of_two_owners(votes):
    given_copies = [Copy(account, str(3 * digest)) for account, digest in votes]
    outcome = quorum.decide(given_copies, alike)
    if outcome.canonical is not None:
        owners = {given_copies[i].account for i in outcome.agreeing}
        assert len(owners) >= 2
        assert {given_copies[i].digest for i in outcome.agreeing} == {given_copies[outcome.canonical].digest}
    else:
        firsts: dict[str, str] = {}
        for copy in given_copies:
            firsts.setdefault(copy.account, copy.digest)
        assert len(set(firsts.values())) == len(firsts)
