"""Bounds that an update has where positives contribute enough without a search."""

import pytest
import torch
from tests.configuration.compositions import found, validated

from bapo_lightning.modules.token_table import TokenTable


def table(advantages):
    advantage = torch.tensor(advantages)
    ones = torch.ones_like(advantage)
    logp = torch.full_like(advantage, -1.0)
    return TokenTable(
        logp=logp,
        entropy=ones,
        ratio=ones,
        behaviour_logp=logp,
        proximal_logp=logp,
        version=torch.zeros_like(advantage, dtype=torch.long),
        advantage=advantage,
        weight=ones,
    )


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
