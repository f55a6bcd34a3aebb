"""The adaptive entropy bonus: its coefficient, its gradient, and its place in a run."""

from itertools import pairwise
from math import inf, nan

import lightning as L
import pytest
import torch
from tests.algorithms.by_hand import exact
from tests.builders import adaptive, budget_for, gradients, module, random_model, stale_batch, step
from tests.configuration.compositions import found, validated
from tests.modules.test_bapo_update import fit
from tests.token_tables import table

from bapo_lightning.algorithms.entropy_bonus import EntropyBonus
from bapo_lightning.modules.bound_rules import FixedBounds
from bapo_lightning.modules.policy.policy import Policy
from bapo_lightning.objectives.objective import clip, needs_of

BOUNDS = FixedBounds(0.8, 1.2)


def always() -> EntropyBonus:
    return EntropyBonus(target=100.0, start=0.3, most=1.0)


def coefficient(bonus, made):
    return float(bonus.prepare(made)["coefficient"])


def looked_at(bonus, *entropies):
    return [coefficient(bonus, table(torch.ones(2), entropy=entropy)) for entropy in entropies]


def test_it_adds_to_the_clipped_surrogate_and_asks_for_a_gradient():
    made = table(exact(1, -1), exact(2, 2), entropy=exact(3, 4), high=1.2, prepared={"coefficient": 0.5})
    assert EntropyBonus()(made).tolist() == pytest.approx([1.2 + 1.5, -2 + 2])
    assert EntropyBonus(dual_clip=1.5)(made).tolist() == pytest.approx([1.2 + 1.5, -1.5 + 2])
    assert needs_of(EntropyBonus()) == {"entropy_gradient"}


def test_the_coefficient_rises_while_entropy_is_low_and_acts_only_then():
    bonus = EntropyBonus(target=0.2, step=0.01, start=0.02, most=0.04)
    assert looked_at(bonus, 0.1, 0.2, 0.2, 0.2) == pytest.approx([0.02, 0.03, 0.04, 0.04])
    assert looked_at(bonus, 0.3, 0.3, 0.1) == pytest.approx([0, 0, 0.02])
    assert looked_at(bonus, *[0.3] * 9, 0.1) == pytest.approx([0] * 10), "it falls to the least"


@pytest.mark.parametrize("entropy", [nan, inf])
def test_an_update_that_is_not_finite_is_not_remembered(entropy):
    bonus = EntropyBonus(start=1e-3)
    looked_at(bonus, entropy)
    assert float(bonus.past) == pytest.approx(1e-3)


def test_rows_count_as_the_tokens_that_they_stand_for():
    bonus = EntropyBonus(target=0.5, start=1e-3)
    made = table(torch.ones(2), entropy=torch.tensor([0.1, 1.0]), count=torch.tensor([3.0, 1.0]))
    assert coefficient(bonus, made) == pytest.approx(1e-3)


def policy_and_batch():
    policy = Policy(random_model().double(), 1.0)
    return policy, stale_batch(policy)


def bonus_gradient(policy, batch, **changes):
    with_bonus = step(policy, BOUNDS, batch, objective=always(), **changes)[1].clone()
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
    budgets = (100_000, budget_for(batch, 5))
    whole, split = (bonus_gradient(policy, batch, micro_batch_tokens=budget) for budget in budgets)
    torch.testing.assert_close(split, whole)


def test_a_checkpoint_holds_the_coefficient():
    policy, batch = policy_and_batch()
    made = module(policy, BOUNDS, objective=always())
    step(policy, BOUNDS, batch, objective=made.objective)
    state = {name: value for name, value in made.state_dict().items() if name.startswith("objective")}
    assert state.keys() == {"objective.past"} and float(state["objective.past"]) == pytest.approx(0.3001)
    resumed = module(policy, BOUNDS, objective=EntropyBonus(target=100.0))
    resumed.load_state_dict(made.state_dict())
    assert torch.equal(resumed.objective.past, made.objective.past)


def test_the_configuration_makes_it_and_refuses_a_start_outside_its_range():
    objective = validated("algorithm=entropy_bonus", "algorithm.objective.target=0.7").algorithm.objective
    assert isinstance(objective.make(), EntropyBonus) and objective.make().target == 0.7
    (text,) = found("algorithm=entropy_bonus", "algorithm.objective.start=0.5")
    assert "start=0.5 must be from" in text and "write algorithm.objective.start=0.0" in text


def test_no_part_remembers_an_update_that_is_skipped():
    """Its tokens are finite here, so that neither the bounds nor the objective can know of it."""
    bonus = EntropyBonus(target=10.0, start=0.1, step=0.01, most=1.0)
    seen = []

    def note(trainer, made, *_):
        seen.append((made.bound_rule.past.clone(), made.objective.past.clone()))

    callbacks = [L.pytorch.callbacks.LambdaCallback(on_train_batch_end=note)]
    options = {"bounds": adaptive(memory=4), "objective": bonus, "callbacks": callbacks}
    fit(Policy(random_model(), 1.0), poisoned={2}, **options)
    for part in zip(*seen, strict=True):
        changed = [not torch.equal(before, after) for before, after in pairwise(part)]
        assert changed == [True, False, True, True]
