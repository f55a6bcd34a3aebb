"""What bound rules refuse, what an update needs of one, and how ours depart from the paper's search."""

import pytest
import torch
from tests.builders import PAPER_BOUNDS, budget_for, random_policy, stale_batch, step
from tests.configuration.compositions import found, validated
from tests.token_tables import table

from bapo_lightning.modules.bound_rules import AdaptiveBounds, FixedBounds
from bapo_lightning.objectives.bounds import BoundSearch


def changed(**changes):
    """The paper's options with some values changed, e.g. low={"end": 1.2}."""
    parts = {name: PAPER_BOUNDS[name] | each for name, each in changes.items() if isinstance(each, dict)}
    return PAPER_BOUNDS | changes | parts


def test_the_papers_options_have_no_problem():
    assert list(AdaptiveBounds.problems(PAPER_BOUNDS)) == []
    assert list(AdaptiveBounds.problems(changed(target=1.5, measure="ratio"))) == []
    assert list(FixedBounds.problems({"low": 0.8, "high": 1.2})) == []
    assert list(FixedBounds.problems({"low": 0, "high": float("inf")})) == []


@pytest.mark.parametrize(("changes", "problem"), [
    ({"low": {"end": 1.2}}, "low.end=1.2 is not a lower bound: "),
    ({"high": {"start": 1.0}}, "high.start=1.0 is not an upper bound: "),
    ({"high": {"start": 4}}, "high.start=4 is beyond high.end=3.0, "),
    ({"low": {"step": 0}}, "low.step=0 never reaches the end; "),
    ({"low": {"stop": 1}}, "low needs start, end and step, got start, end, step, stop; "),
    ({"target": 1.0}, "target=1.0 is not a share (measure=share); "),
    ({"target": 0, "measure": "ratio"}, "target=0 is always met; "),
])  # fmt: skip
def test_a_search_that_cannot_be_is_refused(changes, problem):
    (found,) = AdaptiveBounds.problems(changed(**changes))
    assert found.startswith(problem) and "; " in found


def test_every_problem_is_named_at_once():
    problems = AdaptiveBounds.problems(changed(low={"step": -1, "end": 1}, high={"start": 0.2}, target=2))
    assert [text.partition("=")[0] for text in problems] == ["low.step", "target", "low.end", "high.start"]


@pytest.mark.parametrize(("low", "high", "names"), [
    (1.0, 1.2, ["low"]), (0.8, 0.2, ["high"]), (-0.1, 1, ["low", "high"]),
])  # fmt: skip
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


def rule_of(algorithm, *overrides):
    return validated(f"algorithm={algorithm}", *overrides).algorithm.bounds.make()


@pytest.mark.parametrize(
    ("advantages", "bounds"), [([1.0, 1.0, -1.0], (0.8, 1.2)), ([1.0, -1.0, -1.0, -1.0], (0.9, 3.0))]
)
def test_bounds_at_rest_hold_where_the_target_is_met_at_the_start_and_nowhere_else(advantages, bounds):
    chosen = rule_of("bapo_rest").choose([table(advantages)])
    assert (float(chosen.low), float(chosen.high)) == pytest.approx(bounds)
    plain = rule_of("bapo").choose([table(advantages)])
    assert torch.equal(chosen.value, plain.value) and bool(chosen.met) == bool(plain.met)


def test_a_search_with_memory_balances_the_contributions_of_several_updates():
    rule = rule_of("bapo", "algorithm.bounds.memory=2")
    poor, rich = table([1.0, -1.0, -1.0, -1.0]), table([1.0, 1.0, 1.0, -1.0])
    assert float(rule.choose([poor]).value) == pytest.approx(1 / 4)
    assert float(rule.choose([rich]).value) == pytest.approx((0.5 + 3) / (2 + 4))
    assert float(rule.choose([poor]).value) == pytest.approx((0.25 + 1.5 + 1) / (1 + 2 + 4))
    before = rule.past
    for broken in (table([torch.nan, -1.0]), table([1.0, -1.0], ratio=torch.tensor([torch.nan, 1.0]))):
        rule.choose([broken])
        assert torch.equal(rule.past, before), "an update that is not finite is not remembered"
    assert rule.state_dict().keys() == {"past"}
    plain = rule_of("bapo")
    assert [float(plain.choose([each]).value) for each in (poor, rich, poor)] == [0.25, 0.75, 0.25]
    assert plain.state_dict() == {}


@pytest.mark.parametrize(("overrides", "complaint"), [
    (["rest={low: 1.2, high: 3}"], "rest.low=1.2 is not a lower bound"),
    (["rest={low: 0.8}"], "must have low and high"),
    (["memory=4", "scope=microbatch"], "memory=4 averages over updates"),
    (["memory=0.5"], "algorithm.bounds.memory"),
])  # fmt: skip
def test_rests_and_memories_that_cannot_be_are_refused(overrides, complaint):
    (text,) = found("algorithm=bapo", *(f"algorithm.bounds.{override}" for override in overrides))
    assert complaint in text


def test_a_search_can_move_the_upper_bound_alone():
    chosen = rule_of("bapo_upper").choose([table([1.0, -1.0, -1.0, -1.0])])
    assert (float(chosen.low), float(chosen.high)) == pytest.approx((0.8, 3.0))
