import pytest
import torch
from tests.token_tables import table

from bapo_lightning.algorithms.score_centering import score_centering
from bapo_lightning.objectives.token_table import TokenTable
from bapo_lightning.types import NO_CANDIDATE

SETTINGS = [("none", 0.5, 2.0), ("truncated", 0.5, 2.0), ("masked", 0.5, 5.0)]


def factor(ratio: torch.Tensor, weight: str, low: float, high: float) -> torch.Tensor:
    """f of the paper, by hand."""
    if weight == "none":
        return torch.ones_like(ratio)
    if weight == "truncated":
        return ratio.clamp_max(high)
    return torch.where((ratio < low) | (ratio > high), 0.0, ratio)


def made(logits: torch.Tensor, before: torch.Tensor, token: int, advantage: float, size: int) -> TokenTable:
    """One token of a vocabulary, and the likeliest `size` of those that could have come."""
    logp, noted = logits.log_softmax(-1), before.topk(size)
    return table(
        torch.tensor([advantage], dtype=torch.float64), logp=logp[token].view(1),
        behaviour_logp=before[token].view(1), candidate_logp=logp[noted.indices].view(1, -1),
        candidate_behaviour_logp=noted.values.view(1, -1),
    )  # fmt: skip


@pytest.mark.parametrize(("weight", "low", "high"), SETTINGS)
def test_over_the_whole_vocabulary_the_score_loses_its_mean(weight, low, high):
    generator = torch.Generator().manual_seed(0)
    logits, before = torch.randn(2, 7, dtype=torch.float64, generator=generator) * 1.5
    before = before.log_softmax(-1)
    for token in range(7):
        own = logits.clone().requires_grad_()
        score_centering(made(own, before, token, -0.7, 7), weight, low, high).sum().backward()
        p, q = logits.softmax(-1), before.exp()
        weighed = factor(p / q, weight, low, high)
        scores = torch.eye(7, dtype=torch.float64) - p  # of every token, in the logits
        expected = -0.7 * (weighed[token] * scores[token] - (q * weighed) @ scores)
        assert own.grad is not None
        assert own.grad.tolist() == pytest.approx(expected.tolist(), abs=1e-12)


@pytest.mark.parametrize(("weight", "low", "high"), SETTINGS)
def test_a_head_is_exact_where_the_rest_has_one_ratio(weight, low, high):
    p = torch.tensor([0.5, 0.2, 0.15, 0.1, 0.05], dtype=torch.float64)
    q = torch.tensor([0.3, 0.4, 0.15, 0.10, 0.05], dtype=torch.float64)  # the last three in proportion

    def gradient(size: int) -> list[float]:
        own = p.log().requires_grad_()
        score_centering(made(own, q.log(), 0, 1.0, size), weight, low, high).sum().backward()
        assert own.grad is not None
        return own.grad.tolist()

    assert gradient(2) == pytest.approx(gradient(5), abs=1e-12)


def test_a_head_of_none_centres_nothing_and_places_without_candidates_are_left():
    logits = torch.zeros(3, dtype=torch.float64, requires_grad=True)
    before = torch.tensor([0.5, 0.25, 0.25], dtype=torch.float64).log()
    score_centering(made(logits, before, 0, 1.0, 3), head=0).sum().backward()
    assert logits.grad is not None
    assert logits.grad.tolist() == pytest.approx([2 / 3, -1 / 3, -1 / 3])
    one = torch.ones(1, dtype=torch.float64)
    assert score_centering(table(one), head=0).isfinite().all(), "an engine that notes none is enough"
    none = torch.full((1, 2), NO_CANDIDATE, dtype=torch.float64)
    empty = table(one, candidate_logp=none, candidate_behaviour_logp=none)
    assert score_centering(empty).isfinite().all()
