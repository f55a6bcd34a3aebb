"""Each problem of a regime names the option, the reason and what to write instead."""

import re

import pytest

from bapo_lightning.data.rollouts.regime import Regime

PARTIAL = {"max_new_tokens": 32, "partial_tokens": 8}
REUSE = {"reuse_share": 0.5, "max_reuses": 2, "max_age": 15}


def problems(**options):
    node = {"_target_": "bapo_lightning.data.rollouts.regime.Regime", "name": "mine", "epochs": 1}
    return list(Regime.problems(node | {"minibatches": 4} | options))


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"max_age": 2}, "max_age=2: .* write max_age=3 or fewer updates"),
        ({"async_generation": True}, "async_generation=true needs max_age: .* ahead is max_age=7"),
        ({"reuse_share": 0.5, "max_reuses": 2}, "reuse_share=0.5 needs max_age: .* ahead is max_age=7"),
        ({"async_generation": True} | REUSE, "async_generation=true with reuse_share: .* how old"),
        ({"stale_action": "mask"}, "stale_action=mask without partial_tokens: .* write stale_action=evict"),
        ({"max_segments": 2}, "max_segments=2 without partial_tokens has no effect"),
        (REUSE | {"max_reuses": 0}, "max_reuses=0 with reuse_share=0.5 reuses nothing; write max_reuses=1"),
        (REUSE | {"max_age": 6}, "max_age=6 lets no group be reused: .* write max_age=7 at least"),
        ({"max_reuses": 1}, "max_reuses=1 without reuse_share has no effect; write regime=reuse"),
    ],
)
def test_one_mistake_gives_one_problem(options, problem):
    (found,) = problems(**options)
    assert re.match(problem, found)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"async_generation": True, "max_age": 7, **PARTIAL},
        PARTIAL | {"stale_action": "mask", "max_age": 7, "max_segments": 2},
        REUSE,
    ],
)
def test_options_that_go_together_have_no_problem(options):
    assert problems(**options) == []
