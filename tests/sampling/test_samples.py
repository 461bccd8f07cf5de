import torch

from atoll.sampling.samples import Samples, joined


def made(values: list[float], experts: list[int]) -> Samples:
    weights = torch.zeros(2, len(values), 3)
    weights[:, torch.arange(len(values)), experts] = 1.0
    apart = torch.tensor([values, values])
    return Samples(torch.tensor(values)[:, None], weights, apart, (1.0, 0.5), "full", 0.7)


def test_parts_are_joined_in_the_order_of_their_numbers():
    whole = joined([([3, 0], made([0.3, 0.0], [2, 0])), ([1, 2], made([0.1, 0.2], [1, 1]))])
    torch.testing.assert_close(whole.x_0[:, 0], torch.tensor([0.0, 0.1, 0.2, 0.3]))
    assert whole.expert.tolist() == [0, 1, 1, 2]
    torch.testing.assert_close(whole.disagreement[1], torch.tensor([0.0, 0.1, 0.2, 0.3]))
    assert (whole.strategy, whole.certainty, len(whole)) == ("full", 0.7, 4)


def test_who_led_and_how_often_that_changed():
    weights = torch.tensor([[[0.9, 0.1]], [[0.2, 0.8]], [[0.7, 0.3]]])
    one = Samples(torch.zeros(1, 1), weights, torch.zeros(3, 1), (1.0, 0.6, 0.3), "full", None)
    torch.testing.assert_close(one.shares, torch.tensor([[0.6, 0.4]]))
    assert (one.expert.tolist(), one.switches.tolist()) == ([0], [2])
