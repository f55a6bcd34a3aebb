"""Draws in, scored groups out: the first steps of Algorithm 1 (sample responses, compute rewards).

    start(draws) -> unfinished groups --plan--> requests --(engine)--> attach --> ... all ended --> score -> groups

It keeps no state: what is on its way is `UnfinishedGroup`s, and a request's draw depends on its seed alone.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from bapo_lightning.data.problems.prompts import PromptRule
from bapo_lightning.data.rollouts.unfinished import UnfinishedGroup, UnfinishedRollout
from bapo_lightning.rollout.engine import Generation, GenerationRequest, RolloutEngine, SamplingParams
from bapo_lightning.rollout.seeds import request_seed
from bapo_lightning.types import Completion, Group, Problem, Rollout, Sample, Score, WorkItem

RewardFunction = Callable[[list[Problem], list[Completion]], list[Score]]
Generate = Callable[
    [Sequence[GenerationRequest]], list[Generation]
]  # by the sampler's engine, with its sampling parameters
LengthShaping = Callable[[int], float]  # response length in tokens -> what is added to the reward


@dataclass(frozen=True, slots=True)
class PlannedRequest:
    """A request, and the sample that its tokens belong to."""

    group: UnfinishedGroup
    sample_index: int
    request: GenerationRequest

    def attach(self, generation: Generation, max_new_tokens: int) -> None:
        """Add what was sampled."""
        self.group.rollouts[self.sample_index] = self.group.rollouts[self.sample_index].extended(
            generation, max_new_tokens
        )

    @property
    def is_resumed(self) -> bool:
        """Whether the rollout had tokens already."""
        return bool(self.group.rollouts[self.sample_index].segments)


@dataclass(frozen=True, slots=True)
class RolloutSampler:
    """Samples a group of responses per problem and scores them. It knows nothing of queues or training."""

    engine: RolloutEngine
    tokenizer: Any  # a transformers tokenizer
    prompt: PromptRule
    reward: RewardFunction
    sampling: SamplingParams
    max_new_tokens: int
    seed: int  # of the run; each sample's own seed also depends on version, problem, its number and its place
    length_shaping: LengthShaping | None = None

    def sample_groups(self, problems: Sequence[Problem], group_size: int, generate: Generate) -> list[Group]:
        """One group of `group_size` scored samples per problem, in order, in one pass under the engine's
        present weights.
        """
        groups = self.start([WorkItem(problem, epoch=0) for problem in problems], group_size)
        planned = self.plan(groups, self.max_new_tokens)
        generations = generate([item.request for item in planned])
        for item, generation in zip(planned, generations, strict=True):
            item.attach(generation, self.max_new_tokens)
        return self.score(groups, self.engine.version)

    def start(self, draws: Sequence[WorkItem], group_size: int) -> list[UnfinishedGroup]:
        """Groups of which nothing is sampled yet."""
        return [
            UnfinishedGroup(draw, self.encode_prompt(draw.problem), [UnfinishedRollout()] * group_size)
            for draw in draws
        ]

    def plan(self, groups: Sequence[UnfinishedGroup], partial_tokens: int) -> list[PlannedRequest]:
        """What to ask of the engine so that every sample that has not ended goes on by at most
        `partial_tokens` tokens.
        """
        return [
            PlannedRequest(group, index, self._request(group, index, partial_tokens))
            for group in groups
            for index, rollout in enumerate(group.rollouts)
            if rollout.finish is None
        ]

    def score(self, groups: Sequence[UnfinishedGroup], version: int) -> list[Group]:
        """Verdicts on groups whose samples have all ended; the trainer is at policy `version`."""
        rollouts = [group.finished_rollouts() for group in groups]
        completions = [self.complete(rollout) for row in rollouts for rollout in row]
        repeated = [group.draw.problem for group, row in zip(groups, rollouts, strict=True) for _ in row]
        verdicts = iter(zip(completions, self.reward(repeated, completions), strict=True))
        scored = []
        for group, row in zip(groups, rollouts, strict=True):
            samples = tuple(self._shaped(rollout, *next(verdicts)) for rollout in row)
            scored.append(Group(group.draw.problem, samples, epoch=group.draw.epoch, ready_version=version))
        return scored

    def close(self) -> None:
        """Give the engine back, and end the processes of a reward that has some."""
        self.engine.close()
        close_reward = getattr(self.reward, "close", None)
        if close_reward is not None:
            close_reward()

    def encode_prompt(self, problem: Problem) -> array[int]:
        """Token ids of a problem's prompt."""
        return self.prompt(self.tokenizer, problem)

    def complete(self, rollout: Rollout) -> Completion:
        """What a reward may see of a rollout."""
        text = self.tokenizer.decode(rollout.response_ids.tolist(), skip_special_tokens=True)
        return Completion(text=text, num_tokens=rollout.length, finish=rollout.finish)

    def _request(self, group: UnfinishedGroup, index: int, partial_tokens: int) -> GenerationRequest:
        rollout, draw = group.rollouts[index], group.draw
        token_ids = group.prompt_ids[:]
        for segment in rollout.segments:
            token_ids.extend(segment.token_ids)
        limit = min(partial_tokens, self.max_new_tokens - rollout.length)
        seed = request_seed(
            self.seed, self.engine.version, draw.problem.id, index, draw.epoch, rollout.length
        )
        return GenerationRequest(token_ids, limit, seed)

    def _shaped(self, rollout: Rollout, completion: Completion, score: Score) -> Sample:
        shaping = self.length_shaping(rollout.length) if self.length_shaping is not None else 0.0
        return Sample(rollout, completion, score, score.value + shaping)
