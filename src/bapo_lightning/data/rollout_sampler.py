"""Problems in, scored groups out: the first steps of Algorithm 1 (sample responses, compute rewards)."""

from __future__ import annotations

import time
from array import array
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from bapo_lightning.data.prompts import PromptRule
from bapo_lightning.rollout.engine import EngineDied, Generation, GenerationRequest, RolloutEngine, SamplingParams
from bapo_lightning.rollout.recovery import generate_all
from bapo_lightning.rollout.seeds import request_seed
from bapo_lightning.types import Completion, FinishReason, Group, Problem, Rollout, Sample, Score, ScoreStatus

RewardFunction = Callable[[list[Problem], list[Completion]], list[Score]]
LengthShaping = Callable[[int], float]  # response length in tokens -> what is added to the reward


@dataclass(slots=True)
class SamplingStatistics:
    """What sampling cost and lost since it was last taken. Sums only; ratios are made where they are logged."""

    rollout_seconds: float = 0.0
    reward_seconds: float = 0.0
    num_tokens: int = 0
    num_rollouts: int = 0
    num_cut: int = 0  # responses that reached the token limit
    num_reward_timeouts: int = 0
    num_uniform_groups: int = 0  # groups whose scores are all equal, whatever was then done with them
    num_dropped_groups: int = 0  # groups sampled but not admitted to training

    def take(self) -> SamplingStatistics:
        """Return the sums so far and start again at zero."""
        taken = SamplingStatistics(**{name: getattr(self, name) for name in self.__slots__})
        for name in self.__slots__:
            setattr(self, name, type(getattr(self, name))())
        return taken


def engine_stays_dead(death: EngineDied) -> None:
    """Without anybody to restart it, an engine's death is the end."""
    raise death


@dataclass(slots=True)
class RolloutSampler:
    """Samples a group of responses per problem and scores them. It knows nothing of queues or training."""

    engine: RolloutEngine
    tokenizer: Any  # a transformers tokenizer
    prompt: PromptRule
    reward: RewardFunction
    sampling: SamplingParams
    max_new_tokens: int
    seed: int  # of the run; each sample's own seed also depends on version, problem and its number
    length_shaping: LengthShaping | None = None
    revive: Callable[[EngineDied], None] = engine_stays_dead  # brings a dead engine back, with its weights
    statistics: SamplingStatistics = field(default_factory=SamplingStatistics)
    _num_drawn: Counter[tuple[int, str]] = field(default_factory=Counter)

    def sample_groups(self, problems: Sequence[Problem], group_size: int) -> list[Group]:
        """One group of `group_size` scored samples per problem, in order."""
        encoded = [self.encode_prompt(problem) for problem in problems]
        prompts = [ids for ids in encoded for _ in range(group_size)]
        seeds = [seed for problem in problems for seed in self._seeds(problem, group_size)]
        requests = [GenerationRequest(ids, self.max_new_tokens, seed) for ids, seed in zip(prompts, seeds, strict=True)]
        start = time.perf_counter()
        generations = generate_all(self.engine, requests, self.sampling, self.revive)
        rollouts = [Rollout(ids, (generation.segment,), generation.finish) for ids, generation in zip(prompts, generations, strict=True)]
        completions = [self.complete(rollout) for rollout in rollouts]
        scored = time.perf_counter()
        repeated = [problem for problem in problems for _ in range(group_size)]
        scores = self.reward(repeated, completions)
        samples = [self._shaped(*parts) for parts in zip(rollouts, completions, scores, strict=True)]
        self._count(generations, scores, scored - start, time.perf_counter() - scored)
        return [Group(problem, tuple(samples[index * group_size : (index + 1) * group_size])) for index, problem in enumerate(problems)]

    def encode_prompt(self, problem: Problem) -> array[int]:
        """Token ids of a problem's prompt."""
        return self.prompt(self.tokenizer, problem)

    def complete(self, rollout: Rollout) -> Completion:
        """What a reward may see of a rollout."""
        text = self.tokenizer.decode(rollout.response_ids.tolist(), skip_special_tokens=True)
        return Completion(text=text, num_tokens=rollout.length, finish=rollout.finish)

    def _seeds(self, problem: Problem, count: int) -> list[int]:
        """Seeds of the problem's next samples under the engine's version; a problem drawn twice under one version is not sampled alike."""
        version = self.engine.version
        if any(drawn != version for drawn, _ in self._num_drawn):
            self._num_drawn.clear()
        first = self._num_drawn[version, problem.id]
        self._num_drawn[version, problem.id] += count
        return [request_seed(self.seed, version, problem.id, first + index) for index in range(count)]

    def _shaped(self, rollout: Rollout, completion: Completion, score: Score) -> Sample:
        shaping = self.length_shaping(rollout.length) if self.length_shaping is not None else 0.0
        return Sample(rollout, completion, score, score.value + shaping)

    def _count(self, generations: list[Generation], scores: list[Score], rollout_seconds: float, reward_seconds: float) -> None:
        self.statistics.rollout_seconds += rollout_seconds
        self.statistics.reward_seconds += reward_seconds
        self.statistics.num_rollouts += len(generations)
        self.statistics.num_tokens += sum(len(generation.segment.token_ids) for generation in generations)
        self.statistics.num_cut += sum(generation.finish is FinishReason.LENGTH for generation in generations)
        self.statistics.num_reward_timeouts += sum(score.status is ScoreStatus.TIMEOUT for score in scores)
