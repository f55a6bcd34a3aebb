"""Rules of ours that depart from the paper's search: where it rests, what it remembers, what it moves."""

import pytest
import torch
from tests.configuration.compositions import found, validated
from tests.token_tables import table


@pytest.mark.parametrize(
    ("advantages", "bounds"), [([1.0, 1.0, -1.0], (0.8, 1.2)), ([1.0, -1.0, -1.0, -1.0], (0.9, 3.0))]
)
def test_they_hold_where_the_target_is_met_at_the_start_and_nowhere_else(advantages, bounds):
    rule = validated("algorithm=bapo_rest").algorithm.bounds.make()
    chosen = rule.choose([table(advantages)])
    assert (float(chosen.low), float(chosen.high)) == pytest.approx(bounds)
    plain = validated("algorithm=bapo").algorithm.bounds.make().choose([table(advantages)])
    assert torch.equal(chosen.value, plain.value) and bool(chosen.met) == bool(plain.met)


@pytest.mark.parametrize(
    ("rest", "complaint"),
    [
        ("{low: 1.2, high: 3}", "rest.low=1.2 is no lower bound"),
        ("{low: 0.8}", "must have low and high"),
        ("1", "must have low and high"),
    ],
)
def test_bounds_that_are_none_are_refused(rest, complaint):
    (text,) = found("algorithm=bapo", f"algorithm.bounds.rest={rest}")
    assert complaint in text


def test_a_search_with_memory_balances_the_contributions_of_several_updates():
    rule = validated("algorithm=bapo", "algorithm.bounds.memory=2").algorithm.bounds.make()
    poor, rich = table([1.0, -1.0, -1.0, -1.0]), table([1.0, 1.0, 1.0, -1.0])
    assert float(rule.choose([poor]).value) == pytest.approx(1 / 4)
    assert float(rule.choose([rich]).value) == pytest.approx((0.5 + 3) / (2 + 4))
    assert float(rule.choose([poor]).value) == pytest.approx((0.25 + 1.5 + 1) / (1 + 2 + 4))


def test_one_update_of_memory_is_the_papers_search_and_has_no_state():
    rule = validated("algorithm=bapo").algorithm.bounds.make()
    assert rule.state_dict() == {}
    first = rule.choose([table([1.0, -1.0, -1.0, -1.0])])
    rule.choose([table([1.0, 1.0, 1.0, -1.0])])
    assert rule.choose([table([1.0, -1.0, -1.0, -1.0])]) == first


def test_an_update_that_is_not_finite_is_not_remembered():
    rule = validated("algorithm=bapo_memory").algorithm.bounds.make()
    rule.choose([table([1.0, -1.0, -1.0])])
    before = rule.past
    rule.choose([table([float("nan"), -1.0])])
    assert torch.equal(rule.past, before) and rule.state_dict().keys() == {"past"}


def test_a_memory_and_a_search_for_each_micro_batch_exclude_each_other():
    (text,) = found("algorithm=bapo", "algorithm.bounds.memory=4", "algorithm.bounds.scope=microbatch")
    assert "memory=4 averages over updates" in text and "scope=minibatch" in text
    (text,) = found("algorithm=bapo", "algorithm.bounds.memory=0.5")
    assert "algorithm.bounds.memory" in text


@pytest.mark.parametrize(
    ("advantages", "bounds"), [([1.0, 1.0, -1.0], (0.8, 1.2)), ([1.0, -1.0, -1.0, -1.0], (0.8, 3.0))]
)
def test_a_search_can_move_the_upper_bound_alone(advantages, bounds):
    chosen = validated("algorithm=bapo_upper").algorithm.bounds.make().choose([table(advantages)])
    assert (float(chosen.low), float(chosen.high)) == pytest.approx(bounds)
