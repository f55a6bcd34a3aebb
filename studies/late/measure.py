"""Training by every rule on what its flow of groups gives, many seeds in step.

    flow of each seed --P groups--> decisions sampled by the versions of their moments --> rewards
    kept, advantages_among --> loss of the tokens that train --> AdamW --> next version

Shapes: S seeds, P groups, G answers, K decisions, C contexts, F features, A actions, V versions.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch
from torch import Tensor

from bapo_lightning.configuration.run_config import RunConfig
from bapo_lightning.modules.algorithm import Algorithm
from bapo_lightning.objectives.objective import token_loss
from bapo_lightning.objectives.token_table import table_of
from bapo_lightning.runs.build import build_algorithm
from studies.exact.world import ExactWorld
from studies.late.flow import Flow, Setting, trained_parts
from studies.late.plan import LateConfig, LateWorld
from studies.late.rules import Action, advantages_among

HARDEST = 4  # a quarter of the contexts
Measured = dict[str, np.ndarray]  # quantity -> [S], or [S, V]


def graded(world: ExactWorld, easiest: float) -> tuple[ExactWorld, Tensor]:
    """Returns the world with classes of problems from easy to hard, by the chance that the popular action is
    right: `easiest` in the first class, 0 in the last; and the difficulty of each context, 1 - success [C].
    """
    rank = difficulty_rank(world)
    is_chance = (world.right > 0) & (world.right < 1)
    chance = (easiest * (1 - rank)).view(-1, 1, 1)
    changed = replace(world, right=torch.where(is_chance, chance, world.right))
    return changed, 1 - changed.success(changed.log_probs(changed.prior))


def difficulty_rank(world: ExactWorld) -> Tensor:
    """Returns 0 for contexts of the first class to 1 for those of the last, [C]; a class has one key."""
    kinds = world.features[:, : world.features.shape[1] // 2].argmax(1).float()
    return kinds / kinds.max()


def setting_of(
    config: LateConfig, entry: LateWorld, world: ExactWorld, action: Action, bound: int
) -> Setting:
    """Scales lengths so that the policy at the start has a mean of 1."""
    mean = 1 + (entry.hard - 1) * difficulty_rank(world)
    chance = world.log_probs(world.prior)[:, 0].exp().gather(1, world.key.unsqueeze(1)).squeeze(1)
    scale = (mean * (1 + (entry.key - 1) * chance)).mean()
    return Setting(
        action=action,
        bound=bound,
        groups=config.problems_per_update,
        group_size=config.group_size,
        decisions=world.prior.shape[1],
        train_time=entry.throughput,
        spread=entry.spread,
        longest=config.longest,
        mean_C=(mean / scale).double().numpy(),
        key_C=world.key.numpy(),
        key=entry.key,
    )


@dataclass(frozen=True)
class Minibatch:
    """Data that all seeds train on; fields have S first."""

    context: Tensor  # [S, P]
    actions: Tensor  # [S, P, G, K]
    behaviour_logp: Tensor  # [S, P, G, K]
    age: Tensor  # [S, P, G, K], versions
    advantage: Tensor  # [S, P, G]
    trained: Tensor  # [S, P, G, K], 0 or 1

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        return tuple(vars(self).values())


def sampled(
    world: ExactWorld, history: np.ndarray, flows: list[Flow], method: Algorithm, first_CA: np.ndarray
) -> Minibatch:
    """The next minibatch of every flow. `history`: log-probs by version, [V, S, C, K, A]."""
    batches = [flow.batch(first_CA[seed]) for seed, flow in enumerate(flows)]
    parts = [trained_parts(flow, batch) for flow, batch in zip(flows, batches, strict=True)]
    version, counted, trained = (np.stack(column) for column in zip(*parts, strict=True))
    context = np.array([[group.context for group in batch] for batch in batches])
    uniform = np.stack([[group.uniform_GK for group in batch] for batch in batches])
    luck = np.stack([[group.luck_GK for group in batch] for batch in batches])
    seeds, decisions = np.arange(len(flows)).reshape(-1, 1, 1, 1), np.arange(version.shape[-1])
    logp = history[version, seeds, context[..., None, None], decisions]  # [S, P, G, K, A]
    actions = (np.exp(logp).cumsum(-1) <= uniform[..., None]).sum(-1).clip(max=logp.shape[-1] - 1)
    right = world.right.numpy()[context[..., None, None], decisions, actions]
    reward = torch.tensor((luck < right).all(-1), dtype=torch.float32)
    advantage = [
        advantages_among(method.advantages, *each) for each in zip(reward, torch.tensor(counted), strict=True)
    ]
    return Minibatch(
        torch.tensor(context),
        torch.tensor(actions),
        torch.tensor(np.take_along_axis(logp, actions[..., None], -1)[..., 0]),
        torch.tensor(len(history) - 1 - version),
        torch.stack(advantage),
        torch.tensor(trained, dtype=torch.float32),
    )


def loss_of(world: ExactWorld, method: Algorithm, parameters: Tensor, *tensors: Tensor) -> Tensor:
    """Loss of one seed's minibatch: a mean over the tokens that train."""
    batch = Minibatch(*tensors)
    all_logp = world.log_probs(parameters, batch.context)  # [P, K, A]
    logp = all_logp.gather(-1, batch.actions.transpose(1, 2)).transpose(1, 2)  # [P, G, K]
    entropy = -(all_logp.exp() * all_logp).sum(-1).detach()
    answers = torch.arange(logp.shape[0] * logp.shape[1]).view(*logp.shape[:2], 1)

    def each(values: Tensor) -> Tensor:
        return values.expand_as(logp).flatten()

    table = table_of(
        logp.flatten(),
        batch.behaviour_logp.flatten(),
        entropy=each(entropy.unsqueeze(1)),
        age=batch.age.flatten(),
        sequence=each(answers),
        group=each(answers // logp.shape[1]),
        position=each(torch.arange(logp.shape[2])),
        count=batch.trained.flatten(),
        advantage=each(batch.advantage.unsqueeze(-1)),
        weight=(batch.trained / batch.trained.sum().clamp_min(1)).flatten(),
    )
    return token_loss(table, method.bounds.choose([table.detach()]), {}, method.objective)[0]


def measure(config: LateConfig, run: RunConfig, place: tuple[str, int], action: Action) -> Measured:
    """Trains all seeds by a rule in a world with a bound; returns what `summary` and `Course` need."""
    entry, method = config.worlds[place[0]], build_algorithm(run.algorithm)
    world, difficulty = graded(config.world.make(ExactWorld), config.easiest)
    setting = setting_of(config, entry, world, action, place[1])
    seeds = range(config.first_seed, config.first_seed + config.seeds)
    flows = [Flow(setting, seed) for seed in seeds]
    parameters = world.prior.expand(len(flows), *world.prior.shape).clone().requires_grad_()
    optimizer = run.optimizer.optimizer.make()([parameters], lr=config.learning_rate)
    history = np.empty((config.num_updates, len(flows), *world.right.shape), np.float32)
    hardest = difficulty.argsort()[-(world.num_contexts // HARDEST) :]
    rewards, hard_rewards, ages, oldest, times = [], [], [], [], []
    loss = torch.vmap(partial(loss_of, world, method))
    for version in range(config.num_updates):
        with torch.no_grad():
            all_logp = world.log_probs(parameters)
        history[version] = all_logp.numpy()
        success = world.success(all_logp)
        rewards.append(success.mean(-1).numpy())
        hard_rewards.append(success[:, hardest].mean(-1).numpy())
        times.append([flow.now for flow in flows])
        first_CA = all_logp[:, :, 0].exp().cumsum(-1).numpy()
        first_CA[..., -1] = 1.0  # against rounding
        batch = sampled(world, history[: version + 1], flows, method, first_CA)
        trained_age = batch.age * batch.trained
        ages.append(trained_age.sum((1, 2, 3)) / batch.trained.sum((1, 2, 3)).clamp_min(1))
        oldest.append(trained_age.amax((1, 2, 3)))
        optimizer.zero_grad()
        loss(parameters, *batch.tensors).sum().backward()
        optimizer.step()
    result = {name: np.array([summary(flow, difficulty.numpy())[name] for flow in flows]) for name in SUMMARY}
    courses = {
        "rewards": rewards,
        "hard_rewards": hard_rewards,
        "ages": ages,
        "oldest": oldest,
        "times": times,
    }
    return result | {name: np.array(course).T for name, course in courses.items()}


SUMMARY = ("waste", "length_ratio", "difficulty")


def summary(flow: Flow, difficulty_C: np.ndarray) -> dict[str, float]:
    """Returns, over all groups whose fate is decided: the share of generated time that did not train, the
    mean whole length of answers that trained over the mean of all, and the mean difficulty of their problems
    less the mean of all.
    """
    groups = flow.resolved
    share, length, time = (
        np.stack([getattr(group, name) for group in groups]) for name in ("share_G", "length_G", "tokens")
    )
    difficulty = difficulty_C[[group.context for group in groups]][:, None]
    total = share.sum()
    return {
        "waste": 1 - float((share * time).sum() / time.sum()),
        "length_ratio": float((share * length).sum() / total / length.mean()),
        "difficulty": float((share * difficulty).sum() / total - difficulty.mean()),
    }
