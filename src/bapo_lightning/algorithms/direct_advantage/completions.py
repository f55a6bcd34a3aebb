"""Completions of the beginnings of responses, by which a critic learns what these are worth."""

from __future__ import annotations

from collections.abc import Sequence

from bapo_lightning.data.rollouts.running_group import RunningGroup
from bapo_lightning.data.rollouts.sampler import RolloutSampler
from bapo_lightning.phases import advance, phase
from bapo_lightning.rollout.engine import GenerationRequest
from bapo_lightning.rollout.seeds import request_seed
from bapo_lightning.types import Problem, Rollout, Segment, WorkItem

AT_ONCE = 64  # responses whose beginnings are completed in one call of the engine


def completed_scores(
    sampler: RolloutSampler,
    problems: Sequence[Problem],
    rollouts: Sequence[Rollout],
    states: Sequence[Sequence[int]],
    count: int,
) -> list[list[list[float]]]:
    """Returns the scores of `count` completions of each state of each rollout.

    Args:
        sampler: sampler whose engine has the weights that sampled the rollouts.
        problems: one for each rollout.
        rollouts: finished rollouts.
        states: positions, per rollout, of the last tokens of its beginnings, in prompt and response.
        count: completions of each beginning.
    """
    found: list[list[list[float]]] = []
    with phase("sampling completions", len(rollouts)):
        for first in range(0, len(rollouts), AT_ONCE):
            numbers = range(first, min(first + AT_ONCE, len(rollouts)))
            begun = [
                (number, beginning(rollouts[number], state))
                for number in numbers
                for state in states[number]
                for _ in range(count)
            ]
            requests = [
                GenerationRequest(
                    prefix.token_ids,
                    sampler.max_new_tokens - prefix.length,
                    request_seed(sampler.seed, 0, problems[number].id, place, variant=f"completion {first}"),
                    place,
                )
                for place, (number, prefix) in enumerate(begun)
            ]
            groups = [RunningGroup(WorkItem(problems[number], 0), [prefix]) for number, prefix in begun]
            finished = list(sampler.continued(requests, groups).values())
            samples = iter(sampler.judge([problems[number] for number, _ in begun], finished))
            found += [
                [[next(samples).score.value for _ in range(count)] for _ in states[number]]
                for number in numbers
            ]
            advance(len(numbers))
    return found


def beginning(rollout: Rollout, state: int) -> Rollout:
    """Returns a response up to a position in prompt and response, as one that still runs."""
    length = state + 1 - len(rollout.prompt_ids)
    if not length:
        return Rollout(rollout.prompt_ids)
    version = rollout.segments[0].version
    segment = Segment(rollout.response_ids[:length], rollout.logprobs[:length], version)
    return Rollout(rollout.prompt_ids, (segment,))
