"""The nouns of the system, on the way from a problem to a training batch. Frozen, picklable, without torch.

    Problem -> WorkItem -> Rollout of Segments (engine) -> Sample (reward) -> Group (advantages) -> TrainBatch

In a conversation an environment answers between the policy's turns: its tokens are Segments of feedback.

Token ids and log-probs are `array.array` buffers (int32, float32): eight bytes per token, compared with some
seventy in tuples.
"""

from bapo_lightning.types.closing import Closes
from bapo_lightning.types.groups import (
    Completion,
    Group,
    Problem,
    Sample,
    Score,
    ScoreStatus,
    Steps,
    WorkItem,
    are_trained,
)
from bapo_lightning.types.rollouts import (
    NO_CANDIDATE,
    NO_VERSION,
    Candidates,
    FinishReason,
    Origin,
    Reply,
    Rollout,
    Segment,
)

__all__ = [
    "NO_CANDIDATE",
    "NO_VERSION",
    "Candidates",
    "Closes",
    "Completion",
    "FinishReason",
    "Group",
    "Origin",
    "Problem",
    "Reply",
    "Rollout",
    "Sample",
    "Score",
    "ScoreStatus",
    "Segment",
    "Steps",
    "WorkItem",
    "are_trained",
]
