"""Exact numbers of the worlds against samples, and updates of many seeds against each alone."""

import math
from dataclasses import fields, replace

import pytest
import torch
from tests.configuration.compositions import algorithms_with
from tests.zoo import algorithms

from bapo_lightning.data.rollouts.stages import BatchAdvantageStage
from bapo_lightning.modules.algorithm import Algorithm
from bapo_lightning.modules.bound_rules import AdaptiveBounds, FixedBounds
from bapo_lightning.modules.schedules import linear_warmup
from bapo_lightning.objectives.advantages.group import group_advantages
from bapo_lightning.objectives.objective import clip, needs_of, prepares, scores_at_entry
from bapo_lightning.objectives.sequences import mean_over_tokens
from bapo_lightning.objectives.token_table import reads
from bapo_lightning.objectives.weighting import token_mean
from studies.exact.samples import Answers, draw, token_table
from studies.exact.train import Course, Protocol, train
from studies.exact.world import contextual_table, factored_softmax

WORLDS = [
    contextual_table(num_contexts=8),
    factored_softmax(num_classes=2, contexts_per_class=4, num_actions=12),
]


def generators(count):
    return [torch.Generator().manual_seed(seed) for seed in range(count)]


def mean_of_tokens(mask):
    return token_mean(mask, mask.sum())


def bapo(target=0.5, **options):
    return AdaptiveBounds(
        low={"start": 0.6, "end": 0.9, "step": 0.02}, high={"start": 1.2, "end": 3.0, "step": 0.05},
        target=target, kind="gradient", order="upper_first", measure="share", weight="rollout_prob",
        **{"scope": "minibatch"} | options,
    )  # fmt: skip


def method(rule, batch_advantages=None):
    stages = {} if batch_advantages is None else {"of_batch": BatchAdvantageStage(batch_advantages)}
    return Algorithm(group_advantages, clip, rule, mean_of_tokens, stages=stages)


def protocol(**changes):
    settings = {"num_updates": 16, "problems_per_update": 4, "minibatches": 2, "epochs": 2}
    settings |= {"measure_every": 4, "max_grad_norm": 1.0}
    return Protocol(
        optimizer=lambda parameters: torch.optim.AdamW(parameters, 0.1, weight_decay=0.0),
        scheduler=lambda optimizer: linear_warmup(optimizer, 4),
        **settings | changes,
    )


def drawn(world, parameters, count, group_size):
    contexts = torch.arange(world.num_contexts).repeat(count).unsqueeze(0)
    return draw(world, parameters.unsqueeze(0), 0, contexts, group_size, group_advantages, generators(1))


@pytest.mark.parametrize("world", WORLDS, ids=lambda world: world.name)
def test_reward_and_key_probability_are_what_samples_tend_to(world):
    parameters = world.prior + torch.randn(world.prior.shape, generator=generators(1)[0])
    answers = drawn(world, parameters, 50, 200)
    size = answers.reward.numel()
    logp = world.log_probs(parameters)
    exact = float(world.success(logp).mean())
    assert abs(float(answers.reward.mean()) - exact) < 4 * math.sqrt(exact * (1 - exact) / size)
    keys = (answers.actions[..., 0] == world.key[answers.context].unsqueeze(-1)).float().mean()
    exact = float(world.key_probability(logp))
    assert abs(float(keys) - exact) < 4 * math.sqrt(exact * (1 - exact) / size)
    entropy = -answers.behaviour_logp.mean()
    assert float(entropy) == pytest.approx(float(world.entropy(logp)), abs=0.02)


def test_the_start_is_as_described():
    world = contextual_table(key_prior=0.03, popular_prior=0.6, popular_right=0.4)
    logp = world.log_probs(world.prior)
    assert float(world.success(logp).mean()) == pytest.approx(0.6 * 0.4 + 0.03)
    assert float(world.key_probability(logp)) == pytest.approx(0.03)
    world = factored_softmax(key_prior=0.02, popular_prior=0.6, popular_right=0.4, habit_prior=0.8)
    logp = world.log_probs(world.prior)
    assert float(world.success(logp).mean()) == pytest.approx((0.24 + 0.02) * 0.8**3, rel=1e-5)
    assert float(world.key_probability(logp)) == pytest.approx(0.02)


@pytest.mark.parametrize("world", WORLDS, ids=lambda world: world.name)
def test_a_token_table_stands_for_the_tokens_of_every_answer_and_its_weights_add_up(world):
    answers = drawn(world, world.prior, 1, 4)
    one = Answers(*(tensor[0] for tensor in answers.tensors()))
    table = token_table(world, world.prior, one, mean_of_tokens, version=0)
    tokens = table.count
    right = int(answers.reward.sum())
    wrong = answers.reward.numel() - right
    assert int(tokens.sum()) == right * world.right_tokens + wrong * world.wrong_tokens
    torch.testing.assert_close(table.weight, tokens / tokens.sum())
    assert torch.equal(table.ratio, torch.ones_like(table.ratio)), "the policy is the behaviour policy"
    assert int((table.logp < 0).sum()) == answers.actions.numel()


@pytest.mark.parametrize("rule", [FixedBounds(0.8, 1.2), bapo(), bapo(scope="microbatch"), bapo(memory=4)])
def test_a_seed_trains_as_if_it_were_alone(rule):
    world = WORLDS[0]
    changes = {"micro_batches": 2}
    together = train(world, method(rule), protocol(**changes), [3, 4, 5])
    alone = train(world, method(rule), protocol(**changes), [4])
    for field in fields(Course):
        one, other = getattr(together, field.name)[1:2], getattr(alone, field.name)
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5, equal_nan=True)


def looks_further(objective):
    """Whether an objective sees the whole update or what the policy was; exact worlds have no reference."""
    return "reference_logp" not in needs_of(objective) and (prepares(objective) or scores_at_entry(objective))


@pytest.mark.parametrize("name", algorithms_with("objective", looks_further))
def test_a_seed_knows_its_own_update_alone(name):
    zoo = algorithms.method(name)
    own = replace(method(zoo.bounds), objective=zoo.objective)
    together = train(WORLDS[1], own, protocol(), [3, 4, 5])
    alone = train(WORLDS[1], own, protocol(), [4])
    torch.testing.assert_close(together.entropy[1:2], alone.entropy, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(together.reward[1:2], alone.reward, rtol=1e-4, atol=1e-5)


def test_what_a_policy_was_at_entry_is_what_its_parameters_were_then():
    world = WORLDS[1]
    entry = world.prior + torch.randn(world.prior.shape, generator=generators(1)[0])
    answers = drawn(world, world.prior, 1, 4)
    one = Answers(*(tensor[0] for tensor in answers.tensors()))
    table = token_table(world, world.prior, one, mean_of_tokens, 0, entry=entry)
    there = token_table(world, entry, one, mean_of_tokens, 0, entry=entry)
    assert torch.equal(table["entry_entropy"], there.entropy)
    assert not torch.equal(table.entropy, there.entropy)
    assert torch.equal(table["entry_mean_logp"], there["mean_logp"]) and (table["mean_logp"] <= 0).all()
    assert (table["mean_logp"][table.logp == 0] == 0).all(), "what is certain does not change"
    assert token_table(world, world.prior, one, mean_of_tokens, 0).more == {}


@reads("entry_entropy")
def where_unchanged(table):
    """PPO-clip, without gradient where the entropy has changed by a twentieth since entry."""
    change = (table.entropy.detach() + 1e-8) / (table["entry_entropy"] + 1e-8)
    return torch.where((change - 1).abs() < 0.05, clip(table), clip(table).detach())


@pytest.mark.parametrize("lag", [0, 2])
def test_a_batch_enters_when_it_is_first_trained_on_however_old_it_is(lag):
    """The first update on each batch finds nothing changed, so that with one update each it is PPO."""
    plain = method(FixedBounds(0.8, 1.28))
    other = replace(plain, objective=where_unchanged)
    settings = protocol(minibatches=1, epochs=1, lag=lag)
    one, same = (train(WORLDS[0], own, settings, [0, 1]) for own in (plain, other))
    assert torch.equal(one.reward, same.reward)
    several = protocol(lag=lag, minibatches=4)
    one, cut = (train(WORLDS[0], own, several, [0, 1]) for own in (plain, other))
    assert (cut.clip_fraction[:, -1] > one.clip_fraction[:, -1]).all()


class Rising(torch.nn.Module):
    """PPO-clip with a bonus for entropy, which rises by 0.02 with every update of low entropy."""

    needs = frozenset({"entropy_gradient"})

    def __init__(self):
        super().__init__()
        self.register_buffer("past", torch.zeros(()))

    def prepare(self, table):
        raise AssertionError("this changes the state")

    def remember(self, table, past):
        low = mean_over_tokens(table.entropy, table.count) <= 0.5
        return {"bonus": torch.where(low, past, 0.0)}, (past + torch.where(low, 0.02, -0.02)).clamp(0, 0.5)

    def forward(self, table):
        return clip(table) + table["bonus"] * table.entropy


def test_an_objective_that_remembers_has_a_memory_for_each_seed():
    grpo, bonus = method(FixedBounds(0.8, 1.2)), Rising()
    held = replace(grpo, objective=bonus)
    settings = protocol(num_updates=64)
    without, together = (train(WORLDS[0], own, settings, [0, 1]) for own in (grpo, held))
    assert (together.entropy[:, -1] > without.entropy[:, -1] + 0.01).all()
    torch.testing.assert_close(train(WORLDS[0], held, settings, [1]).entropy, together.entropy[1:])
    assert float(bonus.past) == 0, "what the seeds remember is no state of the objective"


@pytest.mark.parametrize("name", algorithms_with("stages.batch_advantages.advantages"))
def test_a_seed_has_batch_advantages_of_its_own(name):
    stage = algorithms.made(algorithms.composed("algorithm", name).stages.batch_advantages)
    world = contextual_table(num_contexts=8, right_tokens=9, wrong_tokens=3)
    given = method(FixedBounds(0.8, 1.2), stage.advantages)
    together, alone = (train(world, given, protocol(), seeds) for seeds in ([3, 4, 5], [4]))
    torch.testing.assert_close(together.reward[1:2], alone.reward, rtol=1e-4, atol=1e-5)
    plain = train(world, method(FixedBounds(0.8, 1.2)), protocol(), [4])
    assert not torch.equal(plain.reward, alone.reward)


def test_batch_advantages_know_the_lengths_of_answers_and_their_problems():
    world, seen = contextual_table(num_contexts=8, right_tokens=9, wrong_tokens=3), []
    contexts = torch.tensor([[2, 5], [7, 7]])
    stages = [lambda batch: seen.append(batch) or batch.rewards, lambda batch: batch.advantages]
    priors = world.prior.expand(2, *world.prior.shape)
    answers = draw(world, priors, 0, contexts, 4, group_advantages, generators(2), stages)
    (batch,) = seen
    assert batch.problems == ("2", "5") and batch.is_new == (True, True)
    assert torch.equal(batch.lengths, torch.where(answers.reward[0] > 0, 9, 3))
    assert torch.equal(answers.advantage[0], answers.reward[0])
    torch.testing.assert_close(answers.advantage[1], group_advantages(answers.reward[1]))


def test_on_fresh_data_nothing_is_clipped_and_bounds_do_not_matter():
    fresh = protocol(minibatches=1, epochs=1)
    one, other = (train(WORLDS[0], method(rule), fresh, [0, 1]) for rule in (FixedBounds(0.8, 1.2), bapo()))
    assert torch.equal(one.reward, other.reward)
    assert float(one.clip_fraction.max()) == 0


def test_the_reward_rises_and_older_data_is_trained_on_with_a_lag():
    world, grpo = WORLDS[0], method(FixedBounds(0.8, 1.2))
    now = train(world, grpo, protocol(num_updates=64), range(4))
    late = train(world, grpo, protocol(num_updates=64, lag=2), range(4))
    assert float(now.reward[:, -1].mean()) > float(now.reward[:, 0].mean()) + 0.05
    assert float(late.clip_fraction.mean()) > float(now.clip_fraction.mean())


def test_where_the_search_rests_and_ends_is_counted():
    world = contextual_table(num_contexts=8, right_tokens=9, wrong_tokens=3)
    easy = train(world, method(bapo(target=0.01)), protocol(), [0, 1])
    hard = train(world, method(bapo(target=0.99)), protocol(), [0, 1])
    assert float(easy.rests.nanmean()) > 0.9 and float(easy.ends.nanmean()) < 0.1
    assert float(hard.ends.nanmean()) > 0.9 and float(hard.rests.nanmean()) < 0.1
