"""Partial rollouts against whole ones when lengths have a long tail: trained tokens per second of generation,
and their price.

    python bench/partial_rollouts.py [--sizes 2x4 8x8] [--rounds 3] [--threads 1]

Generation alone, synchronous, with the transformers engine and a model of the shipped tiny one's size. After
each rollout batch the version grows by one; weights stay. Lengths follow a law instead of the model:
log-normal, cut at the limit; a resume draws the length anew from the rest of the law.

    whole           a pass lasts until the longest response of the batch has ended
    limit/n         a pass lasts limit/n tokens; the next one resumes the rest and reads their tokens again
    max_age=A       the same, but groups (or only tokens) older than A rollout batches are evicted (masked)
    over-started    no resume: twice the groups are started, the half that is complete first is the batch

All ways take turns, batch by batch, first uncounted until rollouts of all ages are in flight; a round has
several, as one may need no generation. Shares are of sampled tokens; trained lengths show any bias.
"""

from __future__ import annotations

import argparse
import math
import time
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from random import Random
from statistics import NormalDist, fmean, median
from typing import Any

import torch
from measuring import bench_parser

from bapo_lightning.data.problems.stream import ProblemStream
from bapo_lightning.data.rollouts.collector import SyncCollector, TrainerState
from bapo_lightning.data.rollouts.regime import Regime
from bapo_lightning.data.rollouts.sampler import RolloutSampler
from bapo_lightning.data.rollouts.scheduler import RolloutScheduler
from bapo_lightning.modules.policy.factory import build_policy
from bapo_lightning.modules.policy.folder import model_path
from bapo_lightning.modules.policy.options import ModelOptions
from bapo_lightning.modules.policy.policy import Policy
from bapo_lightning.rollout.engine import Generation, GenerationRequest, SamplingParams
from bapo_lightning.rollout.hf.engine import HFEngine
from bapo_lightning.rollout.recovery import RestartingEngine
from bapo_lightning.rollout.weight_sync import WeightSync
from bapo_lightning.types import Completion, FinishReason, Group, Problem, Score, ScoreStatus

MODEL = "package://bapo_lightning/tiny_worlds/additions/model"
LIMIT, PROMPT_TOKENS, MEDIAN, SIGMA = 256, 8, 40, 1.0
LAW = NormalDist(math.log(MEDIAN), SIGMA)  # of the logarithm of the length
SAMPLING = SamplingParams(1.0, ())
FOREVER = 10**6
VOCABULARY = 16  # token ids that prompts use


def drawn_length(so_far: int, seed: int) -> int:
    """Length in tokens of a response that has not ended after `so_far` of them."""
    below = LAW.cdf(math.log(so_far)) if so_far else 0.0
    share = below + Random(seed).random() * (1 - below)
    return min(
        LIMIT,
        so_far + 1 if share >= 1 else max(so_far + 1, math.ceil(math.exp(LAW.inv_cdf(max(share, 1e-12))))),
    )


class LawfulEngine(HFEngine):
    """Ends responses by the law: the stop token is replaced by a limit for each request."""

    def generate(self, requests: Sequence[GenerationRequest], sampling: SamplingParams) -> list[Generation]:
        lefts = [
            drawn_length(so_far := len(item.token_ids) - PROMPT_TOKENS, item.seed) - so_far
            for item in requests
        ]
        limited = [
            replace(item, max_new_tokens=min(left, item.max_new_tokens))
            for item, left in zip(requests, lefts, strict=True)
        ]
        return [
            replace(each, finish=FinishReason.STOP if left <= item.max_new_tokens else FinishReason.LENGTH)
            for each, item, left in zip(super().generate(limited, sampling), requests, lefts, strict=True)
        ]


class NoText:
    def decode(self, token_ids: list[int], skip_special_tokens: bool) -> str:
        return ""


def prompt(tokenizer: Any, problem: Problem) -> array[int]:
    return array(
        "i", [1 + Random(f"{problem.id}/{index}").randrange(VOCABULARY) for index in range(PROMPT_TOKENS)]
    )


def reward(problems: list[Problem], completions: list[Completion]) -> list[Score]:
    return [Score(1.0, ScoreStatus.CORRECT) for _ in problems]


@dataclass
class Tally:
    seconds: float = 0.0
    sampled: int = 0
    trained: int = 0
    masked: int = 0
    dropped: int = 0
    read_again: int = 0
    ages: int = 0  # sum over trained tokens
    oldest: int = 0
    lengths: list[int] = field(default_factory=list)

    def add_groups(self, groups: Sequence[Group], version: int, age_bound: int) -> None:
        for group in groups:
            for sample in group.samples:
                self.lengths.append(sample.rollout.length)
                for segment in sample.rollout.segments:
                    age, count = version - segment.version, len(segment.token_ids)
                    if age > age_bound:
                        self.masked += count
                        continue
                    self.trained += count
                    self.ages += age * count
                    self.oldest = max(self.oldest, age)


class ScheduledWay:
    def __init__(self, regime: Regime, engine: LawfulEngine, policy: Policy, sizes: tuple[int, int]) -> None:
        self._regime, self._policy, self._groups = regime, policy, sizes[0]
        restarting = RestartingEngine(engine, WeightSync(tolerance=1e-3), VOCABULARY, max_restarts=0)
        self._sampler = sampler = RolloutSampler(
            restarting, NoText(), prompt, reward, SAMPLING, LIMIT, seed=0
        )
        stream = ProblemStream([Problem(str(number), "", "") for number in range(10_000)], seed=0)
        self._scheduler = RolloutScheduler(stream, sampler, regime, sizes[1], sizes[0], FOREVER)
        self._collector = SyncCollector(self._scheduler, sampler, self._refresh)
        self._version = 0

    def batch(self, tally: Tally) -> None:
        groups = self._collector.next_groups(self._groups, TrainerState(self._version, self._version))
        counts = self._scheduler.statistics.take()
        tally.seconds += counts.rollout_seconds
        tally.sampled += counts.num_tokens
        tally.dropped += counts.wasted_tokens
        tally.read_again += counts.resumed_tokens
        tally.add_groups(groups, self._version, self._regime.age_bound)
        self._version += 1

    def _refresh(self) -> None:
        self._sampler.engine.load_weights(self._policy, self._version)


class OverStarted:
    """Twice the groups are started; the batch is the half that is complete first, and that moment ends the
    pass.
    """

    def __init__(self, engine: LawfulEngine, policy: Policy, sizes: tuple[int, int]) -> None:
        self._engine, self._policy, self._sizes, self._started = engine, policy, sizes, 0

    def batch(self, tally: Tally) -> None:
        """See `ScheduledWay.batch`. The law gives each group's length beforehand, so that the pass can be
        stopped there.
        """
        (needed, size), first = self._sizes, self._started
        self._started += 2 * needed
        self._engine.load_weights(self._policy, 0)
        prompts = [prompt(None, Problem(str(number), "", "")) for number in range(first, self._started)]
        seeds = [
            [1 + (first + number) * size + sample for sample in range(size)] for number in range(2 * needed)
        ]
        longest = [max(drawn_length(0, seed) for seed in row) for row in seeds]
        end = sorted(longest)[needed - 1]
        kept = sorted(range(2 * needed), key=lambda number: longest[number])[:needed]
        requests = [
            GenerationRequest(ids, end, seed) for ids, row in zip(prompts, seeds, strict=True) for seed in row
        ]
        start = time.perf_counter()
        generations = self._engine.generate(requests, SAMPLING)
        tally.seconds += time.perf_counter() - start
        lengths = [
            [len(item.segment.token_ids) for item in generations[size * number : size * (number + 1)]]
            for number in range(2 * needed)
        ]
        tally.sampled += sum(map(sum, lengths))
        trained = sum(sum(lengths[number]) for number in kept)
        tally.trained += trained
        tally.dropped += sum(map(sum, lengths)) - trained
        tally.lengths += [length for number in kept for length in lengths[number]]


def ways(
    engine: LawfulEngine, policy: Policy, sizes: tuple[int, int]
) -> dict[str, ScheduledWay | OverStarted]:
    def partial_regime(parts: int, **others: Any) -> ScheduledWay:
        regime = Regime(
            "partial", epochs=1, minibatches=1, max_new_tokens=LIMIT, partial_tokens=LIMIT // parts, **others
        )
        return ScheduledWay(regime, engine, policy, sizes)

    kinds: dict[str, ScheduledWay | OverStarted] = {
        "whole": ScheduledWay(Regime("whole", 1, 1, max_new_tokens=LIMIT), engine, policy, sizes)
    }
    kinds |= {f"limit/{parts}": partial_regime(parts) for parts in (2, 4, 8, 16)}
    kinds["limit/8, max_age=4, evict"] = partial_regime(8, max_age=4)
    kinds["limit/8, max_age=4, mask"] = partial_regime(8, max_age=4, stale_action="mask")
    kinds["over-started"] = OverStarted(engine, policy, sizes)
    return kinds


def show(name: str, rounds: list[Tally], reference: list[Tally]) -> None:
    rates = [item.trained / item.seconds for item in rounds]
    ratios = [rate / (other.trained / other.seconds) for rate, other in zip(rates, reference, strict=True)]
    trained, sampled = sum(item.trained for item in rounds), sum(item.sampled for item in rounds)
    dropped, masked, resumed, ages = (
        sum(getattr(item, key) for item in rounds) for key in ("dropped", "masked", "read_again", "ages")
    )
    print(
        f"{name:26}{median(rates):7.0f} tokens/s ({min(rates):.0f} to {max(rates):.0f})  "
        f"{median(ratios):5.2f} x whole ({min(ratios):.2f} to {max(ratios):.2f})  read again "
        f"{resumed / sampled:5.2f}  dropped {dropped / sampled:4.0%}  masked {masked / sampled:4.0%}  age "
        f"{ages / trained:4.1f}, at most {max(item.oldest for item in rounds):2}  trained length "
        f"{fmean(length for item in rounds for length in item.lengths):4.0f}"
    )


def compare(engine: LawfulEngine, policy: Policy, sizes: tuple[int, int], given: argparse.Namespace) -> None:
    compared = ways(engine, policy, sizes)
    print(
        f"{sizes[0]} groups of {sizes[1]} in a batch, {given.rounds} rounds of {given.batches} batches of "
        f"each way after {given.warm_up}:"
    )
    tallies: dict[str, list[Tally]] = {name: [] for name in compared}
    for _ in range(given.warm_up):
        for way in compared.values():
            way.batch(Tally())
    for _ in range(given.rounds):
        for name in compared:
            tallies[name].append(Tally())
        for _ in range(given.batches):
            for name, way in compared.items():
                way.batch(tallies[name][-1])
    for name, rounds in tallies.items():
        show(name, rounds, tallies["whole"])


def main() -> None:
    parser = bench_parser(__doc__, has_json=False, rounds=3, batches=8, warm_up=18, threads=1)
    parser.add_argument(
        "--sizes", nargs="+", default=["2x4", "8x8"], help="of rollout batches: groups x responses in a group"
    )
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    engine = LawfulEngine(model_path(MODEL), max_rows=4096, device="cpu")
    policy = build_policy(ModelOptions(model_path(MODEL)), 1.0)
    drawn = sorted(drawn_length(0, seed) for seed in range(100_000))
    print(
        f"lengths: log-normal, sigma {SIGMA:g}: mean {fmean(drawn):.0f}, median {drawn[50_000]}, p95 "
        f"{drawn[95_000]}, max {drawn[-1]} "
        f"({sum(length == LIMIT for length in drawn) / len(drawn):.1%} reach it)\n"
        f"trained tokens per second of generation (median and range of rounds), {given.threads} thread(s); "
        f"shares of sampled tokens"
    )
    for size in given.sizes:
        groups, group_size = map(int, size.split("x"))
        compare(engine, policy, (groups, group_size), given)


if __name__ == "__main__":
    main()
