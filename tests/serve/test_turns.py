from hypothesis import given
from hypothesis import strategies as st

from atoll.serve.turns import Turns, fair


def test_all_go_where_there_is_room():
    assert fair(["a", "a", "b"], 3) == [0, 1, 2]


def test_users_share_evenly_and_what_one_leaves_goes_to_others():
    users = ["many"] * 10 + ["some"] * 4 + ["one"]
    chosen = fair(users, 9)
    assert [users[number] for number in chosen] == ["many"] * 4 + ["some"] * 4 + ["one"]
    assert chosen[:4] == [0, 1, 2, 3], "what has begun first goes first"


@given(st.lists(st.sampled_from("abcde"), min_size=1, max_size=60), st.integers(1, 70))
def test_nobody_is_left_out_and_no_room_is_wasted(users, most):
    chosen = fair(users, most)
    assert chosen == sorted(set(chosen))
    assert {users[number] for number in chosen} == set(users)
    assert len(chosen) == min(len(users), max(most, len(set(users))))
    counts = {user: sum(users[number] == user for number in chosen) for user in users}
    cut = [counts[user] for user in counts if counts[user] < users.count(user)]
    assert all(max(counts.values()) - count <= 1 for count in cut), "who is cut has as much as anybody"


def test_experts_that_fit_work_at_once():
    assert Turns(None).eligible([0, 1, None]) == [0, 1, 2]
    assert Turns(2).eligible([0, 1, None, 1]) == [0, 1, 2, 3]


def test_an_expert_keeps_its_turn_until_its_rows_are_done():
    turns = Turns(1)
    experts = [0, 1, 0, 2, None]
    assert [turns.eligible(experts) for _ in range(5)] == [[0, 2, 4]] * 5
    assert turns.eligible([1, 2, None]) == [0, 2]


def test_who_waits_is_not_kept_waiting_for_ever():
    turns = Turns(1, patience=3)
    served = [turns.eligible([0, 1, 2]) for _ in range(9)]
    assert served == [[0]] * 3 + [[1]] * 3 + [[2]] * 3
    assert turns.eligible([0, 1, 2]) == [0]


def test_loads_are_few_where_one_is_held_at_a_time():
    """Forty rows of four experts, ten steps each: each expert comes once, and not once per step."""
    turns, left, loads, held = Turns(1), dict.fromkeys(range(40), 10), 0, None
    while left:
        numbers = list(left)
        for place in turns.eligible([number % 4 for number in numbers]):
            expert = numbers[place] % 4
            loads, held = loads + (expert != held), expert
            left[numbers[place]] -= 1
        left = {number: steps for number, steps in left.items() if steps}
    assert loads == 4
