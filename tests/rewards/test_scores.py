"""The border at which every reward is called."""

import pytest

from bapo_lightning.rewards.functions import FunctionRewards
from bapo_lightning.rewards.scores import judged


def of_longest(problems, completions):
    return [max(completion.num_tokens for completion in completions)]


def longest(completions, **columns):
    return [max(map(len, completions))]


@pytest.mark.parametrize("reward", [of_longest, FunctionRewards([longest])])
def test_no_reward_is_called_without_completions(reward):
    """As in the first pass of regime=partial, in which no response ends."""
    assert judged(reward, [], []) == []
