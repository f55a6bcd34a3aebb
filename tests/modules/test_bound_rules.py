"""What a bound rule refuses, and what an update needs of one."""

import pytest
import torch
from tests.builders import PAPER_BOUNDS, budget_for, random_policy, stale_batch, step

from bapo_lightning.modules.bound_rules import AdaptiveBounds, FixedBounds
from bapo_lightning.objectives.bounds import BoundSearch


def changed(**changes):
    """The paper's options with some values changed, e.g. low={"end": 1.2}."""
    return PAPER_BOUNDS | {
        name: PAPER_BOUNDS[name] | value if isinstance(value, dict) else value
        for name, value in changes.items()
    }


def test_the_papers_options_have_no_problem():
    assert list(AdaptiveBounds.problems(PAPER_BOUNDS)) == []
    assert list(FixedBounds.problems({"low": 0.8, "high": 1.2})) == []
    assert list(FixedBounds.problems({"low": 0, "high": float("inf")})) == []


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"low": {"end": 1.2}}, "low.end=1.2 is no lower bound: "),
        ({"high": {"start": 1.0}}, "high.start=1.0 is no upper bound: "),
        ({"high": {"start": 4}}, "high.start=4 is beyond high.end=3.0, "),
        ({"low": {"step": 0}}, "low.step=0 never reaches the end; "),
        ({"low": {"stop": 1}}, "low needs start, end and step, got start, end, step, stop; "),
        ({"target": 1.0}, "target=1.0 is no share of a whole (measure=share); "),
        ({"target": 0, "measure": "ratio"}, "target=0 is always met; "),
    ],
)
def test_a_search_that_cannot_be_is_refused(changes, problem):
    (found,) = AdaptiveBounds.problems(changed(**changes))
    assert found.startswith(problem) and "; " in found


def test_a_ratio_of_contributions_may_exceed_one():
    assert list(AdaptiveBounds.problems(changed(target=1.5, measure="ratio"))) == []


def test_every_problem_is_named_at_once():
    problems = AdaptiveBounds.problems(changed(low={"step": -1, "end": 1}, high={"start": 0.2}, target=2))
    assert [text.partition("=")[0] for text in problems] == ["low.step", "target", "low.end", "high.start"]


@pytest.mark.parametrize(
    ("low", "high", "names"), [(1.0, 1.2, ["low"]), (0.8, 0.2, ["high"]), (-0.1, 1, ["low", "high"])]
)
def test_fixed_bounds_lie_around_one(low, high, names):
    problems = FixedBounds.problems({"low": low, "high": high})
    assert [text.partition("=")[0] for text in problems] == names


class RatioQuantile:
    """A user's own rule: no base class, and no care for the graph that ratios may carry."""

    searches = True

    def scopes(self, micro_batches):
        return [micro_batches]

    def choose(self, tables):
        high = torch.cat([table.ratio for table in tables]).quantile(0.9).clamp_min(1.1)
        return BoundSearch(torch.tensor(0.5), high, torch.tensor(float("nan")), torch.tensor(True))


def test_an_object_with_scopes_choose_and_searches_is_a_bound_rule():
    batch = stale_batch(random_policy())
    (one, gradient), (other, same) = (
        step(random_policy(), RatioQuantile(), batch, micro_batch_tokens=budget_for(batch, parts))
        for parts in (1, 3)
    )
    assert len(one["bounds"]) == len(other["bounds"]) == 1
    assert 1.1 < float(one["bounds"][0].high) == pytest.approx(float(other["bounds"][0].high))
    assert not one["bounds"][0].high.requires_grad
    assert (gradient - same).norm() / gradient.norm() < 1e-5


@pytest.mark.parametrize(("low", "high"), [(0, 2), (0.8, 3), (0, 1.2)])
def test_fixed_bounds_may_be_whole_numbers(low, high):
    found = FixedBounds(low, high).choose([])
    assert (found.low.item(), found.high.item()) == pytest.approx((low, high))
    assert found.low.dtype == found.high.dtype == torch.float32
