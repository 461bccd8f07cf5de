import pytest
import torch
import torch.nn.functional as F

from atoll.models.attention import Attention, CrossAttention, attend
from atoll.models.costs import FEW_KEYS
from tests.models.test_dit import awake, network


def drawn(keys: int = 9, dtype: torch.dtype = torch.bfloat16) -> list[torch.Tensor]:
    """Queries of seven tokens, keys and values of others: two samples, three heads of eight channels."""
    g = torch.Generator().manual_seed(0)
    return [torch.randn(2, 3, size, 8, generator=g).to(dtype) for size in (7, keys, keys)]


def formula(q, k, v, mask=None):
    """softmax(q kᵀ / √8) v, a query at a time, in double precision."""
    q, k, v = (part.double() for part in (q, k, v))
    scores = torch.einsum("bhqc,bhkc->bhqk", q, k) / 8**0.5
    if mask is not None:
        scores = scores.where(mask, torch.tensor(float("-inf"), dtype=torch.float64))
    weights = scores.exp() / scores.exp().sum(-1, keepdim=True)
    return torch.einsum("bhqk,bhkc->bhqc", weights, v)


MASK = torch.tensor([[True] * 4 + [False] * 5, [False] * 8 + [True]])[:, None, None]


@pytest.mark.parametrize("mask", [None, MASK], ids=["all", "masked"])
@pytest.mark.parametrize(("dtype", "error"), [(torch.float32, 1e-5), (torch.bfloat16, 3e-2)])
def test_the_formula(dtype, error, mask):
    q, k, v = drawn(dtype=dtype)
    torch.testing.assert_close(attend(q, k, v, mask).double(), formula(q, k, v, mask), atol=error, rtol=error)


@pytest.mark.parametrize("mask", [None, MASK], ids=["all", "masked"])
def test_its_gradient(mask):
    """As of the formula: what is masked has none, and nothing is lost in rounding but digits."""
    ours, theirs = ([part.requires_grad_() for part in drawn()] for _ in range(2))
    for (q, k, v), way in ((ours, attend), (theirs, formula)):
        way(q, k, v, mask).double().square().sum().backward()
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one.grad, other.grad, atol=0.05, rtol=0.05)
    if mask is not None:
        assert not ours[2].grad[0, :, 4:].any()


@pytest.mark.parametrize(
    ("dtype", "keys", "products"),
    [
        (torch.bfloat16, FEW_KEYS, True),
        (torch.bfloat16, FEW_KEYS + 1, False),
        (torch.float32, 9, False),
    ],
)
def test_torch_is_asked_where_its_own_is_better(monkeypatch, dtype, keys, products):
    """In float32, and where scores would take much memory; then it is torch's answer to the bit."""
    asked = []
    fused = F.scaled_dot_product_attention

    def noted(*parts, **settings):
        asked.append(parts)
        return fused(*parts, **settings)

    monkeypatch.setattr(F, "scaled_dot_product_attention", noted)
    q, k, v = drawn(keys, dtype)
    answer = attend(q, k, v)
    assert bool(asked) is not products
    if not products:
        assert torch.equal(answer, fused(q, k, v))


def test_cross_attention_by_hand():
    """One head, from the formula: softmax(q k / √d) v over the tokens that are there."""
    layer = awake(CrossAttention(network((2, 2), heads=1)))
    x, memory = torch.randn(1, 4, 24), torch.randn(1, 3, 24)
    mask = torch.tensor([[[[True, False, True]]]])
    k, v = layer.kv(memory[0, [0, 2]]).chunk(2, dim=1)
    expected = layer.out((layer.q(x[0]) @ k.T / 24**0.5).softmax(1) @ v)
    torch.testing.assert_close(layer(x, memory, mask)[0], expected)


def test_normalised_queries_do_not_grow_with_the_weights():
    """Scaling the layer of queries and keys leaves attention where it was."""
    plain, normed = (awake(Attention(network((2, 2), qk_norm=on))) for on in (False, True))
    x = torch.randn(1, 4, 24)
    for layer, same in ((plain, False), (normed, True)):
        before = layer(x)
        layer.qkv.weight.data[:48] *= 10
        layer.qkv.bias.data[:48] *= 10
        assert torch.allclose(before, layer(x), atol=1e-5) is same
