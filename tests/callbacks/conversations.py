"""Conversations by hand."""

from array import array
from dataclasses import replace

from bapo_lightning.types import FinishReason, Rollout, Segment


def conversation(*parts, replies, finish=FinishReason.STOP):
    """Returns a rollout of policy version 0 whose parts are the token ids of the policy and of the
    environment in alternation; `replies` beyond the environment's parts are of the last turn.
    """
    rollout = Rollout(array("i", [1]))
    for number, ids in enumerate(parts):
        tokens = array("i", ids)
        if number % 2:
            rollout = rollout.answered(replies[number // 2], tokens)
        else:
            segment = Segment(tokens, array("f", [-1.0] * len(tokens)), version=0)
            rollout = replace(rollout, segments=(*rollout.segments, segment))
    return replace(rollout, finish=finish, replies=tuple(replies))
