from types import SimpleNamespace

from hypothesis import given
from hypothesis import strategies as st

from atoll.serve.line import Line


def ticket(user, num):
    return SimpleNamespace(user=user, request=SimpleNamespace(num=num))


def test_samples_of_one_user_come_in_order_and_in_pieces():
    line, first, second = Line(), ticket("a", 3), ticket("a", 4)
    line.add(first)
    line.add(second)
    assert list(line.take("a", 5)) == [(first, range(3)), (second, range(2))]
    assert list(line.take("a", 5)) == [(second, range(2, 4))]
    assert line.users() == [] and len(line) == 0


def test_what_is_dropped_is_gone_and_others_stay():
    line, mine, other = Line(), ticket("a", 3), ticket("a", 2)
    line.add(mine)
    line.add(other)
    line.drop(mine)
    assert list(line.take("a", 9)) == [(other, range(2))]
    line.drop(mine)
    assert line.users() == []


@given(st.lists(st.tuples(st.sampled_from("ab"), st.integers(1, 9)), max_size=8), st.integers(1, 5))
def test_nothing_is_lost_or_doubled(wishes, most):
    line, taken = Line(), []
    tickets = [ticket(*wish) for wish in wishes]
    for one in tickets:
        line.add(one)
    while line.users():
        for user in line.users():
            before = len(line)
            some = list(line.take(user, most))
            assert before - len(line) == sum(len(part.indices) for part in some) <= most
            taken += some
    expected = [(id(one), index) for one in tickets for index in range(one.request.num)]
    assert sorted((id(part.ticket), index) for part in taken for index in part.indices) == sorted(expected)
