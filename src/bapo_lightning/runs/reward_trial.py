"""The first call of a run's reward, before a model is loaded: what is wrong with a reward shows at once."""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from copy import deepcopy
from typing import Any

from bapo_lightning.configuration.targets import Target
from bapo_lightning.errors import RewardError
from bapo_lightning.phases import phase
from bapo_lightning.random_states import random_states_kept
from bapo_lightning.rewards.scores import judged
from bapo_lightning.types import Closes, Completion, FinishReason, Problem, Reply

COMPLETIONS = 2  # of a call: one value for all of them is no score each


@phase("trying the reward")
def try_reward(node: Target, sets: Mapping[str, Sequence[Problem]], tokenizer: Any, has_turns: bool) -> None:
    """Lets a reward judge made-up completions of the first problem of each set.

    Nothing of it stays: it is a reward of its own, closed at the end, and random states are restored. One
    that judges elsewhere says by `here()` what does it in this process.

    Args:
        node: of the reward.
        sets: problems, by the name for errors.
        tokenizer: of the completions' token ids.
        has_turns: whether an environment answers.

    Raises:
        RewardError: the reward fails, or returns anything else than scores.
    """
    with random_states_kept():
        reward = node.make()
        tried = reward.here() if hasattr(reward, "here") else reward
        try:
            for name, problems in sets.items():
                for problem in problems[:1]:
                    _try(tried, deepcopy(problem), name, tokenizer, has_turns)
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
        raise RewardError(
            f"{error} (asked about a made-up completion of problem {problem.id} of {name})"
        ) from error
