"""A rollout engine that follows a script instead of a model, so that flows can be tested by the thousand."""

from __future__ import annotations

import random
from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from bapo_lightning.data.problems.stream import ProblemStream
from bapo_lightning.data.rollouts.observer import Observer
from bapo_lightning.data.rollouts.regime import Regime
from bapo_lightning.data.rollouts.rules import GroupRule, Rules
from bapo_lightning.data.rollouts.sampler import RolloutSampler
from bapo_lightning.data.rollouts.scheduler import RolloutScheduler
from bapo_lightning.rollout.engine import UNSYNCED_VERSION, EngineDied, Generation, SamplingParams
from bapo_lightning.rollout.recovery import RestartingEngine
from bapo_lightning.rollout.weight_sync import SyncReport
from bapo_lightning.types import (
    NO_VERSION,
    FinishReason,
    Origin,
    Problem,
    Rollout,
    Score,
    ScoreStatus,
    Segment,
)

STOP = 9
OVERLONG = "too long to be drawn"


class ScriptedEngine:
    """Response number n of a problem has a length drawn from (problem, n); its tokens count up, so that lost
    or doubled ones show.
    """

    def __init__(self, longest: int, seed: int = 0, dies: Callable[[], bool] = lambda: False) -> None:
        self.version = UNSYNCED_VERSION
        self.longest, self.seed, self.dies = longest, seed, dies
        self.num_deaths = 0

    def load_weights(self, source: object, version: int) -> None:
        self.version = version

    def sleep(self) -> None:
        pass

    def restart(self) -> None:
        self.version = UNSYNCED_VERSION

    def close(self) -> None:
        pass

    def generate(self, requests, sampling):
        assert self.version != UNSYNCED_VERSION
        made: dict[int, Generation] = {}
        for place, request in enumerate(requests):
            if self.dies():
                self.version = UNSYNCED_VERSION
                self.num_deaths += 1
                raise EngineDied("the script says so", made)
            prompt, sampled = request.token_ids[0], len(request.token_ids) - 1
            assert list(request.token_ids[1:]) == list(range(sampled))
            length = random.Random(f"{self.seed}/{prompt}").randint(1, self.longest)
            count = min(request.max_new_tokens, max(length - sampled, 1))
            segment = Segment(
                array("i", range(sampled, sampled + count)), array("f", [-1.0] * count), self.version
            )
            made[place] = Generation(
                segment, FinishReason.STOP if sampled + count >= length else FinishReason.LENGTH
            )
        return [made[place] for place in range(len(requests))]


class ScriptedSync:
    """Pushes weights without a proof."""

    def push(self, source, engine, version, vocab_size) -> SyncReport:
        engine.load_weights(source, version)
        return SyncReport(version, 0.0, 0.0, 0.0, 0.0)


class NumberTokenizer:
    """Text and token ids are numbers already."""

    vocab_size = 1000
    eos_token_id = STOP

    def encode(self, text, add_special_tokens):
        return [int(word) for word in text.split()]

    def decode(self, token_ids, skip_special_tokens):
        return " ".join(map(str, token_ids))


def ruled(**methods: Any) -> Rules:
    """One rule, whose methods are these functions."""
    rule = GroupRule()
    vars(rule).update(methods)
    return Rules({"own": rule})


class Expert(GroupRule):
    """Answers every problem."""

    def open(self, tokenizer, problem, start):
        segment = Segment(array("i", [7, 8, STOP]), array("f", [0.0] * 3), NO_VERSION)
        return [Rollout(start.prompt_ids, (segment,), FinishReason.STOP, Origin.EXPERT)]


class Hints(GroupRule):
    """Three hints for a group without a right answer, one after another."""

    def again(self, group, encode):
        hint = group.hint + 0.25
        is_solved = any(sample.score.value > 0 for sample in group.samples)
        return None if is_solved or hint > 0.75 else (hint, encode(group.problem))


def number_prompt(tokenizer: object, problem: Problem) -> array[int]:
    return array("i", [int(problem.id)])


def reward_by_length(problems, completions):
    """Some groups are uniform: every third problem is always answered wrongly."""
    verdicts = [
        completion.num_tokens % 2 == 0 and int(problem.id) % 3 > 0
        for problem, completion in zip(problems, completions, strict=True)
    ]
    return [Score(float(right), ScoreStatus.CORRECT if right else ScoreStatus.WRONG) for right in verdicts]


def sampler(engine: ScriptedEngine, max_new_tokens: int, max_restarts: int) -> RolloutSampler:
    return RolloutSampler(
        RestartingEngine(engine, ScriptedSync(), NumberTokenizer.vocab_size, max_restarts),
        NumberTokenizer(),
        number_prompt,
        reward_by_length,
        SamplingParams(1.0, (STOP,)),
        max_new_tokens,
        seed=0,
    )


def scheduler(
    engine: ScriptedEngine,
    regime: Regime,
    groups_per_batch: int,
    num_batches: int,
    num_problems: int = 40,
    group_size: int = 2,
    observers: Sequence[Observer] = (),
    rules: Mapping[str, GroupRule] = {},
    max_restarts: int = 10_000,
) -> RolloutScheduler:
    stream = ProblemStream(
        [Problem(str(index), "", "") for index in range(num_problems)],
        seed=0,
        overlong=[Problem(OVERLONG, "", "")],
    )
    return RolloutScheduler(
        stream,
        replace(sampler(engine, regime.max_new_tokens, max_restarts), rules=Rules(rules)),
        regime,
        group_size,
        groups_per_batch,
        num_batches,
        observers,
    )
