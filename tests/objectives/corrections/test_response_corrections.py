"""Weights of whole responses, choices of pi_proximal, and VCPO's step: numbers by hand, and loops."""

import math

import numpy as np
import pytest
import torch
from tests.token_tables import table
from tests.zoo import weights as reference

from bapo_lightning.objectives.corrections.proximal import behaviour, current, log_linear
from bapo_lightning.objectives.corrections.responses import (
    carm,
    opsm,
    outlier_mask,
    sequence_masked,
    sequence_truncated_is,
)
from bapo_lightning.objectives.corrections.step_size import ess_step_scale
from bapo_lightning.objectives.corrections.tokens import kpop

LOG2 = math.log(2)
ROOTS = 0.99, 1.01, "geometric", True


def of_responses(*log_gaps, **columns):
    """A table of responses whose tokens have these gaps, in nats."""
    flat = torch.tensor([value for own in log_gaps for value in own], dtype=torch.float64)
    columns["sequence"] = torch.tensor([number for number, own in enumerate(log_gaps) for _ in own])
    return table(torch.ones_like(flat), behaviour_logp=-9.0, proximal_logp=flat - 9, **columns)


def random_columns(seed=0):
    generator = np.random.default_rng(seed)
    lengths = generator.integers(1, 9, 12)
    sequence = np.repeat(generator.permutation(12), lengths)
    size, spread = len(sequence), np.repeat(generator.choice([1e-3, 0.01, 0.3, 2.0], 12), lengths)
    logp = -generator.gamma(1.0, 1.0, size)
    age = generator.integers(0, 5, size)
    return {
        "logp": logp, "behaviour_logp": np.minimum(logp + spread * generator.standard_normal(size), 0),
        "proximal_logp": np.minimum(logp + spread * generator.standard_normal(size), 0),
        "advantage": np.repeat(generator.standard_normal(12), lengths), "sequence": sequence, "age": age,
        "age_at_entry": np.minimum(age, 2),
    }  # fmt: skip


def made_of(columns):
    known = {name: torch.from_numpy(values) for name, values in columns.items()}
    return table(known.pop("advantage"), **known)


def test_two_responses_have_the_literal_weights():
    made = of_responses([LOG2, LOG2], [LOG2, -LOG2, -LOG2])
    assert sequence_truncated_is(made, cap=3).tolist() == pytest.approx([3, 3, 0.5, 0.5, 0.5])
    assert sequence_masked(made, 0.4, 2).tolist() == [0, 0, 1, 1, 1]
    assert sequence_masked(made, 0.4, 2, weigh=True).tolist() == pytest.approx([0, 0, 0.5, 0.5, 0.5])
    root = 0.5 ** (1 / 3)
    assert sequence_masked(made, 0.7, 1.9, "geometric").tolist() == [0, 0, 1, 1, 1]
    found = sequence_masked(made, 0.7, 2.1, "geometric", weigh=True).tolist()
    assert found == pytest.approx([2, 2, root, root, root])
    assert outlier_mask(made, 0.6, 100).tolist() == [1, 1, 0, 0, 0]


def test_a_prefix_weighs_the_product_up_to_its_token():
    made = of_responses([LOG2, LOG2, -LOG2], [-LOG2, LOG2])
    assert sequence_truncated_is(made, cap=3, level="prefix").tolist() == pytest.approx([2, 3, 2, 0.5, 1])


def test_carm_drops_responses_whose_changes_would_cancel():
    change = torch.tensor([0.3, -0.3, 0.1, -0.2, 0.25], dtype=torch.float64)
    made = table(
        torch.ones_like(change), behaviour_logp=-1.0, logp=-1 - change, sequence=torch.tensor([0, 0, 1, 1, 2])
    )
    assert carm(made).tolist() == [0, 0, 1, 1, 0], "of log 1.2 = 0.182"
    assert carm(made, 1.3).tolist() == [0, 0, 1, 1, 1]


def test_opsm_drops_negative_responses_that_became_unlikely():
    drift = torch.tensor([0.3, -0.1, 0.0, 0.3, -0.3, 0.1], dtype=torch.float64)  # means 0.1, 0.15, -0.1
    made = table(
        torch.tensor([-1.0, -1, 1, 1, -1, -1], dtype=torch.float64), behaviour_logp=-1.0, logp=-1 - drift,
        sequence=torch.tensor([0, 0, 1, 1, 2, 2]),
    )  # fmt: skip
    assert opsm(made, 0.05).tolist() == [0, 0, 1, 1, 1, 1]
    assert opsm(made, 0.11).tolist() == [1] * 6


@pytest.mark.parametrize("seed", range(3))
def test_random_tables_give_what_loops_give(seed):
    columns = random_columns(seed)
    made = made_of(columns)
    for found, expected in [
        (sequence_truncated_is(made, 1.5), reference.sequence_truncated(columns, 1.5)),
        (sequence_truncated_is(made, 1.5, "prefix"), reference.prefix_truncated(columns, 1.5)),
        (carm(made, 1.1), reference.carm(columns, 1.1)),
        (sequence_masked(made, 0.9, 1.1), reference.sequence_masked(columns, 0.9, 1.1, "product", False)),
        (sequence_masked(made, *ROOTS), reference.sequence_masked(columns, *ROOTS)),
        (outlier_mask(made, 0.5, 2.0), reference.outlier(columns, 0.5, 2.0)),
        (kpop(made, 0.3), reference.kpop(columns, 0.3)),
        (opsm(made, 0.01), reference.opsm(columns, 0.01)),
        (log_linear(made), reference.log_linear(columns, "entry")),
        (log_linear(made, "previous"), reference.log_linear(columns, "previous")),
        (ess_step_scale(made, 0.5), reference.step_scale(columns, 0.5)),
    ]:
        np.testing.assert_allclose(found, expected, rtol=1e-9)
        assert len(np.unique(np.asarray(expected))) > 1 or np.ndim(expected) == 0, "a case must differ"


def test_the_interpolated_policy_is_the_behaviour_where_fresh_and_the_current_where_it_just_entered():
    logp, sampled = torch.tensor([-1.0, -1.3, -0.7, -2.0]), torch.tensor([-2.0, -2.0, -0.1, -1.0])
    made = table(torch.ones(4), logp=logp, behaviour_logp=sampled, age=torch.tensor([0, 3, 4, 4]),
                 age_at_entry=torch.tensor([0, 0, 4, 1]))  # fmt: skip
    assert log_linear(made).tolist() == pytest.approx([-2, -2, -0.7, -1.25])
    assert torch.equal(log_linear(made)[:3], torch.stack([sampled[0], sampled[1], logp[2]]))
    assert log_linear(made, "previous").tolist() == pytest.approx([-2, -2 + 0.7 * 2 / 3, -0.55, -1.75])
    assert torch.equal(behaviour(made), sampled)


def test_relative_to_the_current_policy_every_ratio_is_1_and_the_weight_is_the_whole_ratio():
    logp = torch.tensor([-1.0, -1.5, -2.0], requires_grad=True)
    made = table(torch.ones(3), logp=logp, behaviour_logp=-1.5, sequence=torch.tensor([0, 0, 1]))
    made = made.relative_to(current(made))
    assert made.ratio.tolist() == [1, 1, 1] and made.ratio.requires_grad
    weights = sequence_truncated_is(made.detach())
    assert weights.tolist() == pytest.approx([math.exp(0.5), math.exp(0.5), math.exp(-0.5)])


def test_the_step_shrinks_with_the_effective_sample_size_of_responses():
    # Weights 1, 1, 2: 16 / 6 of 3 responses. Their lengths do not matter.
    made = of_responses([0.0], [0.0, 0.0, 0.0], [0.0, 0.0], logp=torch.tensor([0, 0, 0, 0, LOG2, 0.0]) - 9)
    assert float(ess_step_scale(made)) == pytest.approx(math.sqrt(16 / 18))
    assert float(ess_step_scale(made, usual=0.5)) == 1
    far = of_responses([0.0], [0.0], logp=torch.tensor([791.0, -9.0]))
    assert float(ess_step_scale(far)) == pytest.approx(math.sqrt(0.5)), "no overflow at e^800"
