import torch
from hypothesis import given
from hypothesis import strategies as st

from atoll.models.siblings import Build
from atoll.sampling.grouping import Group, bundles, everyone, groups, rows_of


@given(st.integers(0, 10_000), st.integers(1, 12), st.integers(1, 5), st.integers(1, 6))
def test_every_weight_is_asked_for_once_and_nothing_else(seed, rows, experts, most):
    g = torch.Generator().manual_seed(seed)
    weights = torch.rand(rows, experts, generator=g) * (torch.rand(rows, experts, generator=g) < 0.5)
    asked = [
        (group.expert, row)
        for group in groups(weights, most)
        for row in torch.arange(rows)[group.rows].tolist()
    ]
    assert sorted(asked) == sorted((k, row) for row, k in weights.nonzero().tolist())
    assert all(len(torch.arange(rows)[group.rows]) <= most for group in groups(weights, most))


def test_rows_beyond_a_batch_are_divided_evenly():
    weights = torch.tensor([[1.0, 0.0]] * 33 + [[0.0, 1.0]])
    assert [rows_of(group, 34) for group in groups(weights, 32)] == [17, 16, 1]


def test_an_expert_of_all_rows_is_asked_about_the_batch_as_it_is():
    assert groups(torch.tensor([[0.0, 1.0], [0.0, 1.0]])) == [Group(1, slice(None))]
    assert everyone(3, 5, 2) == [Group(3, slice(0, 2)), Group(3, slice(2, 4)), Group(3, slice(4, 5))]


def test_questions_to_adapters_of_one_base_go_together_up_to_a_batch():
    kin = ["a", "a", None, "b", "a", "a"]
    questions = [Group(k, torch.arange(3)) for k in range(6)]
    numbers = [[group.expert for group in one] for one in bundles(questions, kin, 8, 6)]
    assert numbers == [[0, 1], [4, 5], [2], [3]], "the largest first"
    cut = bundles(questions, kin, 8, 5)
    assert [[(group.expert, len(group.rows)) for group in one] for one in cut] == [
        [(0, 3), (1, 2)],
        [(1, 1), (4, 3), (5, 1)],
        [(2, 3)],
        [(3, 3)],
        [(5, 2)],
    ], "what is too much goes into the next one"
    assert [len(one) for one in bundles(questions, [], 8, 6)] == [1] * 6


def test_networks_of_one_build_go_together_with_few_rows_each():
    kin = [Build("a")] * 4
    questions = [Group(k, torch.arange(count)) for k, count in enumerate((1, 5, 2, 1))]
    numbers = [[group.expert for group in one] for one in bundles(questions, kin, 9, 8, few=2)]
    assert numbers == [[1], [0, 2, 3]]
    assert [len(one) for one in bundles(questions, kin, 9, 8)] == [1] * 4


@given(st.lists(st.integers(1, 9), min_size=1, max_size=8), st.integers(1, 12))
def test_whoever_is_alike_fills_batches_and_no_row_is_lost(sizes, most):
    questions = [Group(k, some) for k, size in enumerate(sizes) for some in torch.arange(size).split(most)]
    asked = bundles(questions, ["alike"] * len(sizes), sum(sizes), most)
    pairs = [(group.expert, int(row)) for one in asked for group in one for row in group.rows]
    assert sorted(pairs) == [(k, row) for k, size in enumerate(sizes) for row in range(size)]
    counts: list[int] = [sum([rows_of(group, sum(sizes)) for group in one]) for one in asked]
    assert counts == sorted(counts, reverse=True)
    assert all(count == most for count in counts[:-1]) and counts[-1] <= most


def test_rows_of_a_question_whatever_says_them():
    assert rows_of(Group(0, slice(None)), 5) == 5
    assert rows_of(Group(0, slice(2, 9)), 5) == 3
    assert rows_of(Group(0, torch.arange(4)), 5) == 4
