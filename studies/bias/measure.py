"""Bias, noise and error of every method's gradient along a path of exact ascent.

    path[0] samples, path[age] is trained: grad J by enumeration, and each method's expected gradient
    noise of one answer: from its covariance; of a batch that couples its answers: from batches that are drawn

Shapes: S starts, N answers, K decisions, B batch sizes, D parameters.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np
import torch
from torch import Tensor

from bapo_lightning.data.rollouts.stages import BatchAdvantageStage
from studies.bias.plan import AtlasConfig, Place
from studies.bias.population import Method, Slopes, Stale, expected_advantage, slopes
from studies.exact.enumerated import Enumerated

DRAWN_AT_ONCE = 4  # batches of each start, for the sake of memory
Table = dict[str, np.ndarray]  # quantity -> [ages, S] or [ages, B, S]


@dataclass(frozen=True)
class Truth:
    """What is to be estimated, and from what."""

    gradient: Tensor  # [S, D]
    square: Tensor  # [S], |grad J|^2
    frequency: Tensor  # [S, N], by the behaviour policy
    advantage: Tensor  # [S, N]: reward less the behaviour policy's mean in the answer's context
    value: Tensor  # [S, N], that mean


@dataclass(frozen=True)
class Estimate:
    """A gradient in units of |grad J|, each [S]."""

    along: Tensor  # its mean along the truth
    square: Tensor  # of its mean
    noise: Tensor  # variance of one answer's


def path_of(config: AtlasConfig, place: Place) -> tuple[Enumerated, list[Tensor]]:
    """The world, and parameters from the behaviour policy on."""
    entry = config.worlds[place.world]
    world: Enumerated = entry.world.make(Enumerated, starts=config.seeds)
    begin = world.after(entry.moments[place.moment], entry.pace)
    return world, list(islice(world.ascent(begin, place.rate), config.ages[-1] + 1))


def truth_of(world: Enumerated, current: Tensor, behaviour: Tensor) -> Truth:
    """The truth under parameters `current`, with answers of `behaviour`."""
    gradient = world.gradient(current).flatten(1)
    frequency = world.probability(world.taken(world.log_probs(behaviour)))
    value = world.value(frequency)
    return Truth(gradient, gradient.square().sum(1), frequency, world.reward - value, value)


def stale_of(world: Enumerated, path: Sequence[Tensor], age: int, entry: float) -> Stale:
    at_entry = round(age * entry)
    current, behaviour, entered = (world.log_probs(path[place]) for place in (age, 0, at_entry))
    return Stale(world, current, behaviour, entered, age, at_entry)


def expectation(method: Method, stale: Stale, truth: Truth, slope: Slopes) -> Estimate:
    """The expected gradient, and the variance of one answer's from its covariance; what an objective takes
    from the whole update counts as fixed. A loss over a random number of tokens varies with that number to
    first order.
    """
    world, frequency = stale.world, truth.frequency
    mean = world.pull(slope.logits)
    square = mean.square().sum(1)
    second = world.squared_norms(slope.logits) / frequency
    total = torch.where(frequency > 0, second, 0.0).sum(1)
    if method.divides_by_tokens:
        share = world.length / (frequency * world.length).sum(1, keepdim=True)  # [S, N]
        weighted = world.pull(slope.logits * share[..., None, None])
        total = total - 2 * (mean * weighted).sum(1) + square * (frequency * share.square()).sum(1)
    else:
        total = total - square
    along = (mean * truth.gradient).sum(1)
    return Estimate(along / truth.square, square / truth.square, total.clamp_min(0) / truth.square)


def of_batches(method: Method, stale: Stale, truth: Truth, size: int, replicates: int) -> Estimate:
    """The same of batches of `size` answers that are drawn, the same ones for every method."""
    generator = torch.Generator().manual_seed(size)
    starts, answers = truth.frequency.shape
    gradients = []
    for _ in range(replicates // DRAWN_AT_ONCE):
        drawn = torch.multinomial(
            truth.frequency, size * DRAWN_AT_ONCE, replacement=True, generator=generator
        )
        places = drawn.view(starts, DRAWN_AT_ONCE, size).transpose(0, 1).flatten(0, 1)
        counts = torch.zeros(DRAWN_AT_ONCE * starts, answers, dtype=torch.float64)
        shares = counts.scatter_add(1, places, torch.ones_like(places, dtype=torch.float64)) / size
        slope = slopes(method, stale, truth.advantage.repeat(DRAWN_AT_ONCE, 1), shares, size)
        stacked = slope.logits.unflatten(0, (DRAWN_AT_ONCE, starts))
        gradients += [stale.world.pull(each) for each in stacked]
    stacked = torch.stack(gradients)  # [replicates, S, D]
    mean, variance = stacked.mean(0), stacked.var(0).sum(1)
    square = (mean.square().sum(1) - variance / len(stacked)).clamp_min(0)
    along = (mean * truth.gradient).sum(1)
    return Estimate(along / truth.square, square / truth.square, variance * size / truth.square)


def cosine(estimate: Estimate) -> Tensor:
    """Of the expected gradient to the truth, [S]; 0 where it vanishes."""
    return torch.where(estimate.square > 0, estimate.along / estimate.square.sqrt(), 0.0)


def error(estimate: Estimate, size: int) -> Tensor:
    """Least mean squared error of a batch's gradient over all scales > 0, in units of |grad J|^2, [S]."""
    second = estimate.square + estimate.noise / size
    return 1 - torch.where(second > 0, estimate.along.clamp_min(0).square() / second, 0.0).clamp_max(1)


def squared_error(estimate: Estimate, scale: Tensor, size: int) -> Tensor:
    """Mean squared error at a scale, [S]: squared bias and variance."""
    return squared_bias(estimate, scale) + estimate.noise / size / scale.square()


def squared_bias(estimate: Estimate, scale: Tensor) -> Tensor:
    return (estimate.square / scale.square() - 2 * estimate.along / scale + 1).clamp_min(0)


def effective_share(slope: Slopes, truth: Truth) -> Tensor:
    """Kish's effective sample size as a share of the tokens, [S], by the weight of each token's score."""
    times = truth.frequency * truth.advantage
    kept = (times != 0).unsqueeze(-1).expand_as(slope.taken)
    weight = torch.where(kept, slope.taken / times.unsqueeze(-1), 0.0)
    often = truth.frequency.unsqueeze(-1) * kept
    sums = [(often * each).sum((1, 2)) for each in (torch.ones_like(weight), weight, weight.square())]
    return torch.where(sums[2] > 0, sums[1].square() / (sums[0] * sums[2]), 0.0)


def path_table(config: AtlasConfig, place: Place) -> Table:
    """How far the policy has moved at each age: in nats a token, in nats an answer, and in reward."""
    world, path = path_of(config, place)
    rows: dict[str, list[Tensor]] = {"moved": [], "kl": [], "reward": [], "norm": []}
    for age in config.ages:
        stale = stale_of(world, path, age, 1.0)
        truth = truth_of(world, path[age], path[0])
        log_ratio = world.taken(stale.current) - world.taken(stale.behaviour)
        rows["moved"].append((truth.frequency * log_ratio.abs().mean(-1)).sum(1))
        rows["kl"].append(-(truth.frequency * log_ratio.sum(-1)).sum(1))
        rows["reward"].append(world.success(path[age]))
        rows["norm"].append(truth.square.sqrt())
    return {name: torch.stack(values).numpy() for name, values in rows.items()}


def measure(
    config: AtlasConfig, place: Place, methods: Mapping[str, Method], count: Callable[[str], None]
) -> dict[str, Table]:
    """Returns the quantities of every method at every age; calls `count` with each finished method."""
    world, path = path_of(config, place)
    truths = [truth_of(world, path[age], path[0]) for age in config.ages]
    draws = place == config.head
    tables = {}
    for name, method in methods.items():
        rows: dict[str, list[Tensor]] = {}
        scale = torch.ones(config.seeds, dtype=torch.float64)
        for age, truth in zip(config.ages, truths, strict=True):
            stale = stale_of(world, path, age, method.entry)
            slope = slopes(method, stale, truth.advantage, truth.frequency)
            whole = expectation(method, stale, truth, slope)
            scale = whole.along if age == 0 else scale
            batches = [
                of_batches(method, stale, truth, size, config.replicates)
                if draws and method.couples
                else whole
                for size in config.batches
            ]
            pairs = list(zip(batches, config.batches, strict=True))
            for quantity, values in {
                "cosine": cosine(whole),
                "bias": squared_bias(whole, scale).sqrt(),
                "bias_along": whole.along / scale - 1,
                "noise": whole.noise.sqrt() / scale,
                "effective": effective_share(slope, truth),
                "low": slope.low,
                "high": slope.high,
                "own": _algorithm_cosine(config, method, stale, truth),
                "error": torch.stack([error(*pair) for pair in pairs]),
                "squared_error": torch.stack([squared_error(each, scale, size) for each, size in pairs]),
            }.items():
                rows.setdefault(quantity, []).append(values)
        tables[name] = {quantity: torch.stack(values).numpy() for quantity, values in rows.items()}
        count(f"{place.name}  {name}")
    return tables


def _algorithm_cosine(config: AtlasConfig, method: Method, stale: Stale, truth: Truth) -> Tensor:
    """The cosine with the algorithm's own advantages, in mean over groups; NaN where a batch decides them."""
    algorithm = method.algorithm
    if any(isinstance(stage, BatchAdvantageStage) for stage in algorithm.stages.values()):
        return torch.full_like(truth.square, torch.nan)
    advantage = expected_advantage(algorithm.advantages, config.group_size, stale.world.reward, truth.value)
    slope = slopes(method, stale, advantage, truth.frequency)
    return cosine(expectation(method, stale, truth, slope))
