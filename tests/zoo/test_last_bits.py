"""What the last bits of log-probs and rewards may not decide, for every algorithm: they are those of a
machine, a batch and a number of ranks.
"""

import pytest
import torch
from tests.algorithms.reward_batches import batch
from tests.zoo import algorithms
from tests.zoo.reference import random_columns, table_from

from bapo_lightning.objectives.objective import prepares

METHODS = {name: algorithms.method(name) for name in algorithms.names()}
PREPARING = [name for name, method in METHODS.items() if prepares(method.objective)]
# Groups of equal rewards, some of them but for rounding, and others; means that are equal but for rounding.
ROUNDED = [[0.3, 0.1 + 0.2, 0.3], [0.1, 0.2, 0.3], [0.3, 0.2, 0.1], [0.3, 0.1, 0.2]]
EXACT = [[0.3, 0.3, 0.3], *ROUNDED[1:]]


@pytest.mark.parametrize("name", PREPARING)
def test_what_is_picked_for_an_update_does_not_hang_on_the_last_bits_of_log_probs(name):
    for seed in range(4):  # of some tables only one token could be picked
        method, columns = METHODS[name], random_columns(seed)
        shifted = columns | {each: columns[each] - 1e-9 for each in ("behaviour_logp", "proximal_logp")}
        found, again = (method.objective.prepare(table_from(each, method)) for each in (columns, shifted))
        for each, values in found.items():
            assert torch.allclose(again[each], values, atol=1e-6), f"{name}: {each}"


@pytest.mark.parametrize("rounded, exact", [(ROUNDED, EXACT), (ROUNDED[1:], ROUNDED[1:2] * 3)])
@pytest.mark.parametrize("name", algorithms.names())
def test_rewards_that_are_equal_but_for_rounding_have_no_advantages(name, rounded, exact):
    def advantages(rewards):
        rewards = torch.tensor(rewards, dtype=torch.float64)
        own = algorithms.made(algorithms.composed("algorithm", name)["stages"].get("batch_advantages"))
        return own.advantages(batch(rewards)) if own else METHODS[name].advantages(rewards)

    found, expected = (advantages(each).sort(dim=1).values for each in (rounded, exact))
    assert found.isfinite().all()
    assert torch.allclose(found, expected, atol=1e-5), name
