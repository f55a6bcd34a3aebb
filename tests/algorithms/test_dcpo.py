from math import sqrt

import numpy as np
import pytest
from tests.algorithms.by_hand import exact, pulls
from tests.algorithms.reward_batches import batch, check_memory, random_batch
from tests.token_tables import table
from tests.zoo import rewards as reference

from bapo_lightning.algorithms.dcpo import SmoothAdvantages, dcpo_clip

BOUNDS = {"low": 0.84, "high": 1.2}


def test_unlikely_tokens_have_wider_bounds():
    # q = 0.8: hi = (1 + sqrt(2)) / 2 = 1.207, lo = (1 + sqrt(0.2)) / 2 = 0.724. q = 0.01: hi = 5, lo = 0.5
    behaviour = exact(0.8, 0.8, 0.8, 0.8, 0.01, 0.01, 0.01, 0.01).log()
    ratio = exact(1.20, 1.21, 0.73, 0.72, 4.9, 5.1, 0.51, 0.49)
    made = table(exact(*[1, 1, -1, -1] * 2), ratio, behaviour_logp=behaviour, **BOUNDS)
    assert pulls(dcpo_clip, made) == pytest.approx([1.20, 0.0, -0.73, 0.0, 4.9, 0.0, -0.51, 0.0])


def test_the_bounds_of_a_token_of_no_probability_are_finite():
    found = pulls(dcpo_clip, table(exact(1, -1), exact(9.9, 0.6), behaviour_logp=-1000.0, **BOUNDS))
    assert found == pytest.approx([9.9, -0.6])


def test_smooth_advantages_of_two_visits():
    advantages = SmoothAdvantages()
    first = advantages(batch([[1.0, 0.0]], problems=["p"]))
    assert first.tolist() == [pytest.approx([0.5**0.5, -(0.5**0.5)])]  # the deviation is sqrt 1/2
    # All right: z_new = 0. Means 1/2 and 1, variances 1/2 and 0: 3/4, and 1/4 + 1/16.
    whole = 0.25 / sqrt(5 / 16)
    assert advantages(batch([[1.0, 1.0]], problems=["p"])).tolist() == [pytest.approx([whole / 2] * 2)]
    assert advantages(batch([[1.0, 1.0]], problems=["q"])).tolist() == [[0, 0]]


def test_smooth_advantages_of_many_visits_are_those_of_all_groups_pooled_anew():
    advantages, by_loops = SmoothAdvantages(), [reference.Dcpo() for _ in range(6)]
    for seed in range(6):
        made = random_batch(seed)
        expected = [own(row) for own, row in zip(by_loops, made.rewards.numpy(), strict=True)]
        np.testing.assert_allclose(advantages(made), expected, atol=1e-9)


def test_a_group_of_one_has_no_deviation():
    with pytest.raises(ValueError, match="a group of 1"):
        SmoothAdvantages()(batch([[1.0], [0.0]]))


def test_the_memory_goes_on_where_it_was_saved_and_learns_from_new_groups_only(tmp_path):
    check_memory(SmoothAdvantages, tmp_path)
