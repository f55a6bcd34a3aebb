import pytest
import torch
from tests.algorithms.by_hand import exact, pulls, refusal
from tests.token_tables import table

from bapo_lightning.algorithms.ce_gppo import ce_gppo
from bapo_lightning.objectives.objective import clip


def test_it_keeps_the_gradient_of_the_bound_where_ppo_has_none():
    made = table(exact(1, 1, -2, -2, -2), exact(1.1, 2.0, 0.5, 0.9, 20.0), low=0.8, high=1.2)
    found = pulls(lambda tokens: ce_gppo(tokens, 0.5, 1.0, 10.0), made)
    assert found == pytest.approx([1.1, 1.2, -2 * 0.5 * 0.8, -2 * 0.9, 0.0])
    assert pulls(lambda tokens: ce_gppo(tokens, 0.0, 0.0), made) == pytest.approx(pulls(clip, made))


def test_without_bounds_it_is_finite():
    made = table(exact(1, -1), exact(2.0, 0.5), low=0.0, high=torch.inf)
    assert pulls(ce_gppo, made) == pytest.approx([2.0, -0.5])


def test_a_dual_clip_that_would_cut_unchanged_tokens_is_refused():
    assert refusal("ce_gppo", "dual_clip=0.5").startswith("dual_clip=0.5 must be above 1")
