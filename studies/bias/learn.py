"""Training in a tree of bits on batches that an older policy sampled, with corrections; many seeds in step.

    path[0], `lag` updates old --> one group of B answers --> share and advantage of every answer of the tree
    `slopes` of the algorithm's own loss under path[-1] --> optimizer

Shapes: S seeds, N answers, B answers of a batch. All is float64.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from studies.bias.population import Method, Stale, slopes
from studies.exact.enumerated import Tree
from studies.exact.train import Protocol, clip_each


def seeded(world: Tree, seeds: Sequence[int]) -> Tree:
    """Returns the tree with the starts of these seeds alone."""
    chosen = list(seeds)
    return replace(world, start=world.start[chosen], chance=world.chance[chosen])


def learn(world: Tree, method: Method, protocol: Protocol, seeds: Sequence[int]) -> Tensor:
    """Returns the exact reward at every measurement, [S, measurements].

    Args:
        world: with a start for each seed.
        method: batches enter training when they are trained, so that a correction has the whole age.
        protocol: an update has one problem of `group_size` answers, which is used once.
        seeds: what a seed draws depends on its number alone, so that methods can be compared in pairs.
    """
    generators = [torch.Generator().manual_seed(seed) for seed in seeds]
    parameters = world.start.clone().requires_grad_()
    optimizer = protocol.optimizer([parameters])
    schedule = protocol.scheduler(optimizer)
    path = deque([parameters.detach().clone()], maxlen=protocol.lag + 1)
    rewards = []
    for number in range(1, protocol.num_updates + 1):
        parameters.grad = -gradient(world, method, path, protocol.group_size, generators)
        clip_each(parameters.grad, protocol.max_grad_norm)
        optimizer.step()
        schedule.step()
        path.append(parameters.detach().clone())
        if number % protocol.measure_every == 0:
            rewards.append(world.success(path[-1]))
    return torch.stack(rewards, 1)


def gradient(
    world: Tree, method: Method, path: Sequence[Tensor], size: int, generators: Sequence[torch.Generator]
) -> Tensor:
    """Returns the direction of ascent, [S, ...], by a batch of the first policy of the path at its last."""
    behaviour, current = world.log_probs(path[0]), world.log_probs(path[-1])
    cumulative = world.probability(world.taken(behaviour)).cumsum(-1)
    uniform = torch.stack([torch.rand(size, generator=each, dtype=torch.float64) for each in generators])
    drawn = torch.searchsorted(cumulative, uniform * cumulative[:, -1:], right=True)
    drawn = drawn.clamp_max(len(world.reward) - 1)  # [S, B]
    empty = torch.zeros_like(cumulative)
    shares = empty.scatter_add(1, drawn, torch.full_like(uniform, 1 / size))
    advantage = empty.scatter(1, drawn, method.algorithm.advantages(world.reward[drawn]))
    age = len(path) - 1
    stale = Stale(world, current, behaviour, current, age, age)
    return world.pull(slopes(method, stale, advantage, shares, size).logits).view_as(path[0])
