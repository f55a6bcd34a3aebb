"""The adaptive entropy bonus: its coefficient, its gradient, and its place in a run."""

from math import inf, nan

import pytest
import torch
from bapo_lightning.modules.entropy_control import AdaptiveCoefficient
from tests.builders import budget_for, gradients, module, random_model, stale_batch, step
from tests.configuration.compositions import found, validated
from tests.token_tables import table

from bapo_lightning.algorithms.entropy_bonus import EntropyBonus
from bapo_lightning.modules.bound_rules import FixedBounds
from bapo_lightning.modules.policy.policy import Policy
from bapo_lightning.objectives.clip import clip
from bapo_lightning.objectives.token_table import remembers

BOUNDS = FixedBounds(0.8, 1.2)
ALWAYS = {"target": 100.0, "start": 0.3, "most": 1.0}


def looked_at(control, *entropies):
    return [float(control(table(torch.ones(2), entropy=entropy))) for entropy in entropies]


def test_the_coefficient_rises_while_entropy_is_low_and_acts_only_then():
    control = AdaptiveCoefficient(target=0.2, step=0.01, start=0.02, most=0.04)
    assert looked_at(control, 0.1, 0.2, 0.2, 0.2) == pytest.approx([0.02, 0.03, 0.04, 0.04])
    assert looked_at(control, 0.3, 0.3, 0.1) == pytest.approx([0, 0, 0.02])
    assert looked_at(control, *[0.3] * 9, 0.1) == pytest.approx([0] * 10), "it falls to the least"


def test_its_memory_is_seen_though_it_is_a_buffer():
    assert remembers(AdaptiveCoefficient()) and not remembers(torch.nn.Identity()) and not remembers(None)


@pytest.mark.parametrize("entropy", [nan, inf])
def test_an_update_that_is_not_finite_is_not_remembered(entropy):
    control = AdaptiveCoefficient(start=1e-3)
    looked_at(control, entropy)
    assert float(control.past) == pytest.approx(1e-3)


def test_rows_count_as_the_tokens_that_they_stand_for():
    control = AdaptiveCoefficient(target=0.5, start=1e-3)
    made = table(torch.ones(2), entropy=torch.tensor([0.1, 1.0]), count=torch.tensor([3.0, 1.0]))
    assert float(control(made)) == pytest.approx(1e-3)


def policy_and_batch():
    policy = Policy(random_model().double(), 1.0)
    return policy, stale_batch(policy)


def bonus_gradient(policy, batch, **changes):
    options = {"objective": EntropyBonus(), "statistic": AdaptiveCoefficient(**ALWAYS)}
    with_bonus = step(policy, BOUNDS, batch, **options, **changes)[1].clone()
    return with_bonus - step(policy, BOUNDS, batch, objective=clip, **changes)[1]


def test_the_gradient_is_that_of_the_mean_entropy_over_the_vocabulary():
    policy, batch = policy_and_batch()
    found_gradient = bonus_gradient(policy, batch)
    (micro_batch,) = batch.split(100_000, batch.response_mask.double())
    policy.zero_grad()
    logits = policy.model(micro_batch.input_ids).logits.flatten(0, 1)[micro_batch.index]
    entropy = torch.distributions.Categorical(logits=logits).entropy().mean()
    (-0.3 * entropy).backward()
    torch.testing.assert_close(found_gradient, gradients(policy), rtol=1e-4, atol=1e-8)
    assert found_gradient.norm() > 1e-3


def test_the_gradient_does_not_depend_on_the_micro_batches():
    policy, batch = policy_and_batch()
    whole, split = (
        bonus_gradient(policy, batch, micro_batch_tokens=budget) for budget in (100_000, budget_for(batch, 5))
    )
    torch.testing.assert_close(split, whole)


def test_entropy_carries_a_graph_only_for_objectives_that_ask_for_it():
    policy, _ = policy_and_batch()
    assert module(policy, BOUNDS, objective=EntropyBonus()).policy.entropy_requires_grad
    assert not module(policy, BOUNDS).policy.entropy_requires_grad


def test_a_checkpoint_holds_the_coefficient():
    policy, batch = policy_and_batch()
    made = module(policy, BOUNDS, objective=EntropyBonus(), statistic=AdaptiveCoefficient(**ALWAYS))
    step(policy, BOUNDS, batch, objective=EntropyBonus(), statistic=made.statistic)
    state = {name: value for name, value in made.state_dict().items() if name.startswith("statistic")}
    assert state.keys() == {"statistic.past"} and float(state["statistic.past"]) == pytest.approx(0.3001)
    resumed = module(policy, BOUNDS, objective=EntropyBonus(), statistic=AdaptiveCoefficient(target=100.0))
    resumed.load_state_dict(made.state_dict())
    assert torch.equal(resumed.statistic.past, made.statistic.past)


def test_the_configuration_makes_it_and_refuses_a_start_outside_its_range():
    algorithm = validated("algorithm=entropy_bonus", "algorithm.statistic.target=0.7").algorithm
    assert algorithm.statistic.make().target == 0.7 and isinstance(algorithm.objective.make(), EntropyBonus)
    (text,) = found("algorithm=entropy_bonus", "algorithm.statistic.start=0.5")
    assert "start=0.5 must be from" in text and "write algorithm.statistic.start=0.0" in text
