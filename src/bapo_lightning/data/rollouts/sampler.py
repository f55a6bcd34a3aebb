"""From work items to scored groups: the first steps of Algorithm 1 (sample responses, compute rewards and
advantages).

    start(items) -> running groups -> requests -> continued -> ... all ended -> score -> groups

The sampler keeps no state: groups in progress are `RunningGroup`s, and the tokens of a request depend only on
its seed and the weights. If an environment answers the policy, `Conversations` continues the rollouts.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from bapo_lightning.data.problems.prompts import PromptRule, decoded
from bapo_lightning.data.rollouts.conversations import REPLY_FILE, Conversations, ReplyJournal, Rounds
from bapo_lightning.data.rollouts.rules import Rules
from bapo_lightning.data.rollouts.running_group import RunningGroup
from bapo_lightning.rewards.scores import Reward, judged
from bapo_lightning.rollout.engine import Generation, GenerationRequest, SamplingParams, request_seed
from bapo_lightning.rollout.recovery import RestartingEngine
from bapo_lightning.system.phases import phase
from bapo_lightning.types import Closes, Completion, Group, Problem, Rollout, Sample, WorkItem, are_trained

AdvantageFunction = Callable[[torch.Tensor], torch.Tensor]  # rewards[P, G] -> advantages[P, G], row by row
_OPENING, _LOOKED_AT = "<think>", 16  # opening of a thought, and tokens before a turn that may hold it


@dataclass(frozen=True, slots=True)
class RolloutSampler:
    """Samples a group of responses per problem and scores it, independently of queues and training."""

    engine: RestartingEngine
    tokenizer: Any  # a transformers tokenizer
    prompt: PromptRule
    reward: Reward
    sampling: SamplingParams
    max_new_tokens: int
    seed: int  # of the run; part of each request's seed, see `request_seed`
    advantages: AdvantageFunction | None = None  # None: groups are not trained on
    rules: Rules = field(default_factory=Rules)  # for single groups
    conversations: Conversations | None = None  # None: a response is one turn
    ends: tuple[int, ...] = ()  # tokens that end a response, left out of its text

    def start(self, items: Sequence[WorkItem], group_size: int) -> list[RunningGroup]:
        """Returns groups without sampled tokens; answers that a rule gives come first."""
        groups = []
        for item in items:
            open_rollout = Rollout(self.encode_prompt(item.problem))
            given = self.rules.open(self.tokenizer, item.problem, open_rollout)
            given = [rollout for rollout in given if rollout.length <= self.max_new_tokens]
            groups.append(RunningGroup(item, given + [open_rollout] * (group_size - len(given))))
        return groups

    def restarted_group(self, group: Group) -> RunningGroup | None:
        """Returns a scored group without sampled tokens and with another prompt, if a rule requests it."""
        if (retry := self.rules.retry(group, self.encode_prompt)) is None:
            return None
        hint, prompt = retry
        return RunningGroup(group.item, [Rollout(prompt)] * len(group.samples), hint)

    def requests(
        self,
        groups: Sequence[RunningGroup],
        partial_tokens: int,
        wanted: Callable[[RunningGroup], Sequence[int]] = RunningGroup.unfinished,
    ) -> list[GenerationRequest]:
        """Returns a request of at most `partial_tokens` for each `wanted` sample, with its group's number."""
        return [
            self._request(number, group, index, partial_tokens)
            for number, group in enumerate(groups)
            for index in wanted(group)
        ]

    def continued(
        self,
        requests: Sequence[GenerationRequest],
        groups: Sequence[RunningGroup],
        sampling: SamplingParams | None = None,
        once: bool = False,
        rounds: Rounds | None = None,
    ) -> dict[int, Rollout]:
        """Returns the rollouts that one pass continues, by number of their request in `requests`, which the
        method `requests` made for `groups`. With `once` there are none if the engine dies; otherwise they are
        sampled again after a restart. `sampling` None: as in training; `rounds` None: replies as they come.
        """
        used = sampling or self.sampling

        def sample(requested: Sequence[GenerationRequest]) -> Mapping[int, Generation]:
            if once:
                return self.engine.generate_once(requested, used)
            return dict(enumerate(self.engine.generate(requested, used)))

        rollouts = [groups[request.group].rollouts[request.index] for request in requests]
        if self.conversations is not None:
            problems = [groups[request.group].item.problem for request in requests]
            return self.conversations.continued(requests, problems, rollouts, sample, rounds)
        return {
            number: rollouts[number].extended(generation.segment, generation.finish, self.max_new_tokens)
            for number, generation in sample(requests).items()
        }

    def score(self, groups: Sequence[RunningGroup], version: int) -> list[Group]:
        """Scores ended groups at policy `version` by the rules of training; ValueError for other groups."""
        rollouts = [rollout for group in groups for rollout in group.rollouts]
        problems = [group.item.problem for group in groups for _ in group.rollouts]
        samples = (self.rules.applied(sample, version) for sample in self.judge(problems, rollouts))
        rows = [tuple(next(samples) for _ in group.rollouts) for group in groups]
        return [
            Group(group.item.problem, row, advantages, group.item.epoch, version, hint=group.hint)
            for group, row, advantages in zip(groups, rows, self._advantages(rows), strict=True)
        ]

    @phase("scoring")
    def judge(self, problems: list[Problem], rollouts: Sequence[Rollout]) -> list[Sample]:
        """Scores ended rollouts, each against its problem, without rules; ValueError for other rollouts."""
        completions = self._completions(rollouts)
        scores = judged(self.reward, problems, completions)
        return [
            Sample(rollout, completion.text, score, score.value)
            for rollout, completion, score in zip(rollouts, completions, scores, strict=True)
        ]

    def keep_replies(self, folder: Path | None) -> None:
        """Keeps the environment's replies in a run's folder, for a resume after a kill."""
        if folder is not None and self.conversations is not None:
            self.conversations.journal = ReplyJournal(folder / REPLY_FILE)

    @property
    def journal(self) -> ReplyJournal:
        """Replies that the environment got and that a resume needs again."""
        return ReplyJournal() if self.conversations is None else self.conversations.journal

    def encode_prompt(self, problem: Problem) -> array[int]:
        """Token ids of a problem's prompt."""
        return self.prompt(self.tokenizer, problem)

    @property
    def limits(self) -> str:
        """Keys and values of the limits that cut an answer."""
        limits, talk = f"scale.max_new_tokens={self.max_new_tokens}", self.conversations
        if talk is None:
            return limits
        feedback = f"scale.max_feedback_tokens={talk.max_feedback_tokens}"
        return f"{limits}, {feedback} or environment.max_turns={talk.max_turns}"

    def close(self) -> None:
        """Closes engine, environment and reward."""
        for part in (self.engine, self.conversations, self.reward):
            if isinstance(part, Closes):
                part.close()

    def _request(
        self, number: int, group: RunningGroup, index: int, partial_tokens: int
    ) -> GenerationRequest:
        rollout, item = group.rollouts[index], group.item
        limit = min(partial_tokens, self.max_new_tokens - rollout.length)
        variant = f"hint {group.hint}" if group.hint else ""
        seed = request_seed(
            self.seed, self.engine.version, item.problem.id, index, item.epoch, rollout.length, variant
        )
        return GenerationRequest(rollout.token_ids, limit, seed, number, index)

    def _completions(self, rollouts: Sequence[Rollout]) -> list[Completion]:
        has_turns = self.conversations is not None
        rows = [rollout.turns if has_turns else (rollout.response_ids,) for rollout in rollouts]
        texts = iter(decoded(self.tokenizer, [row for turns in rows for row in turns], self.ends))
        opened: dict[bytes, bool] = {}
        completions = []
        for rollout, row in zip(rollouts, rows, strict=True):
            if rollout.finish is None:
                raise ValueError("a rollout that has not ended cannot be scored")
            turns = tuple(next(texts) for _ in row)
            talk = (turns, rollout.replies) if has_turns else ((), ())
            feedback = [segment.token_ids for segment in rollout.segments if segment.is_feedback]
            before = (feedback[-1] if feedback else rollout.prompt_ids)[-_LOOKED_AT:]
            if (key := before.tobytes()) not in opened:
                text = self.tokenizer.decode(before.tolist(), skip_special_tokens=False)
                opened[key] = text.rstrip().endswith(_OPENING)
            facts = rollout.length, rollout.finish
            completions.append(Completion(turns[-1], *facts, *talk, opened[key], rollout.response_ids))
        return completions

    def _advantages(self, rows: Sequence[Sequence[Sample]]) -> list[tuple[float, ...]]:
        """Returns the advantages of each row of samples, of this row alone; zeros if none is trained on."""
        if self.advantages is None or not rows:
            return [()] * len(rows)
        rewards = torch.tensor([[sample.reward for sample in row] for row in rows], dtype=torch.float32)
        if len(rows) == 1:  # torch sums a lone row in another order
            rewards = rewards.repeat(2, 1)
        values = self.advantages(rewards)[: len(rows)].tolist()
        trained = map(are_trained, rows)
        return [tuple(row) if kept else (0.0,) * len(row) for row, kept in zip(values, trained, strict=True)]
