from dataclasses import replace
from functools import partial

import pytest
import torch
from tests.builders import group, module, random_policy, rollout
from tests.token_tables import table

from bapo_lightning.callbacks.monitors.mismatch import CorrectionMonitor, MismatchMonitor
from bapo_lightning.callbacks.monitors.monitor import Update
from bapo_lightning.data.batches.batch import collate
from bapo_lightning.modules.bound_rules import FixedBounds
from bapo_lightning.objectives.corrections.step_size import ess_step_scale
from bapo_lightning.objectives.corrections.tokens import masked_is, truncated_is


def update(weights=(1.0,), correction=None, version=0, scores=None):
    """One token per weight pi_proximal / pi_behaviour; the policy is still the proximal one."""
    behaviour = torch.full((len(weights),), -2.0)
    proximal = behaviour + torch.tensor(weights).log()
    made = group("p", [rollout([1], range(len(weights)), behaviour.tolist())], [1.0], [1.0])
    sample = replace(made.samples[0], scores=scores or {})
    tokens = table(
        torch.ones_like(behaviour), logp=proximal, behaviour_logp=behaviour, proximal_logp=proximal
    )
    tokens = tokens if correction is None else tokens.corrected(correction(tokens))
    owner = module(random_policy(), FixedBounds(0.8, 1.2), correction=correction)
    return Update(0, version, tokens, [], collate([replace(made, samples=(sample,))], {}), owner, {})


def numbers(metrics):
    return {name: float(value) for name, value in metrics.items()}


def test_a_rule_for_the_step_is_shown_with_or_without_a_correction():
    made = update()
    made.module.step_scale, made.module.last_step_scale = ess_step_scale, 0.25
    assert CorrectionMonitor().measure(made) == {"correction/step_scale": 0.25}
    made.module.correction = truncated_is
    assert len(CorrectionMonitor().measure(made)) == 6


def test_five_numbers_describe_what_a_correction_does():
    assert numbers(CorrectionMonitor().measure(update([0.5, 1.0, 1.5, 4.0], truncated_is))) == pytest.approx(
        {
            "correction/weight_mean": 1.25, "correction/weight_min": 0.5, "correction/masked_fraction": 0,
            "correction/truncated_fraction": 0.25, "correction/effective_sample_size": 1.25**2 / (7.5 / 4),
        }
    )  # fmt: skip
    masked = numbers(
        CorrectionMonitor().measure(update([0.1, 1.0, 2.0, 9.0], partial(masked_is, low=0.5, high=5.0)))
    )
    assert masked == pytest.approx(
        {
            "correction/weight_mean": 0.75, "correction/weight_min": 0, "correction/masked_fraction": 0.5,
            "correction/truncated_fraction": 0, "correction/effective_sample_size": 0.75**2 / (5 / 4),
        }
    )  # fmt: skip


def test_without_a_correction_nothing_is_measured():
    assert CorrectionMonitor().measure(update()) == {}


def test_the_first_minibatch_stands_for_a_batch_that_was_not_scored_at_entry():
    found = numbers(MismatchMonitor().measure(update([1.0, 2.0])))
    assert found["mismatch/ratio_max"] == pytest.approx(2.0)
    assert (
        found["mismatch/abs_logp_diff_mean"]
        == found["mismatch/logp_diff_mean"]
        == pytest.approx(0.34657, abs=1e-4)
    )
    assert MismatchMonitor().measure(update([1.0, 2.0], version=1)) == {}
    assert MismatchMonitor().measure(update([1.0, 2.0], scores={"proximal_logp": [-2.0, -1.3]})) == {}
