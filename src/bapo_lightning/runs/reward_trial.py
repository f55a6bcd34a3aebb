"""Calls a run's reward before a model is loaded, so that faults of the reward are reported at once."""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from typing import Any

from bapo_lightning.configuration.targets import Target
from bapo_lightning.rewards.scores import judged
from bapo_lightning.system.errors import RewardError
from bapo_lightning.system.phases import phase
from bapo_lightning.system.random_states import random_states_kept
from bapo_lightning.types import Closes, Completion, FinishReason, Problem, Reply

COMPLETIONS = 2  # in a call, which shows a single value in place of a score for each


@phase("trying the reward")
def try_reward(node: Target, sets: Mapping[str, Sequence[Problem]], tokenizer: Any, has_turns: bool) -> None:
    """Lets a reward judge made-up completions of the first problem of each set.

    It leaves no trace: it uses a separate reward object, closed at the end, and restores random states. A
    reward that judges elsewhere returns from `here()` an object that judges in this process. `sets` are
    problems by the name used in errors; `has_turns`: an environment answers. Raises RewardError: the reward
    fails, or returns anything else than scores.
    """
    with random_states_kept():
        reward = node.make()
        tried = reward.here() if hasattr(reward, "here") else reward
        try:
            for name, problems in sets.items():
                for problem in problems[:1]:
                    _try(tried, problem, name, tokenizer, has_turns)
        finally:
            for part in (tried, reward):
                if isinstance(part, Closes):
                    part.close()


def _try(reward: Any, problem: Problem, name: str, tokenizer: Any, has_turns: bool) -> None:
    text = rf"\boxed{{{problem.answer}}}"
    ids = array("i", tokenizer.encode(text, add_special_tokens=False))
    turns, replies = ((text,), (Reply(is_done=True, score=0.0),)) if has_turns else ((), ())
    stop = FinishReason.STOP
    completion = Completion(text, len(ids), stop, turns=turns, replies=replies, token_ids=ids)
    try:
        judged(reward, [problem] * COMPLETIONS, [completion] * COMPLETIONS)
    except RewardError as error:
        raise RewardError(f"{error} (for a made-up completion of problem {problem.id} of {name})") from error
