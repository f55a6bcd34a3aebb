"""A reward whose verdicts are found on the nodes of a Ray cluster."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from bapo_lightning.errors import RewardError
from bapo_lightning.ranks.ray.packages import require_ray
from bapo_lightning.types import Completion, Problem, Score
from bapo_lightning.values import Count, NonNegative

MOST_TRIES = 3  # of a call whose worker dies
Reward = Callable[[list[Problem], list[Completion]], list[Score]]


@dataclass(eq=False)
class VerdictsOnNodes:
    """Callable `(problems, completions) -> scores`: cuts them into calls that the workers of all nodes take
    in turn, and gives every answer the score that `make_reward()` would give it. A worker that dies is made
    anew, on any node, and its call is repeated.
    """

    make_reward: Callable[[], Reward]  # called in each worker; picklable, such as a partial of a class
    address: str | None = None  # of the cluster, as in `joining.join`
    workers: Count = 2  # spread over the nodes
    cpus: NonNegative = 0.0  # of each worker; others may have reserved all
    answers_per_call: Count = 64
    _pool: Any = field(default=None, init=False)
    _turn: threading.Lock = field(default_factory=threading.Lock, init=False)
    _joined: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        require_ray("a reward on nodes", "reward=math")

    def __call__(self, problems: list[Problem], completions: list[Completion]) -> list[Score]:
        """Scores each completion against the problem at the same index. Raises RewardError without nodes."""
        import ray

        size = self.answers_per_call
        parts = [
            (problems[first : first + size], completions[first : first + size])
            for first in range(0, len(problems), size)
        ]
        try:
            with self._turn:
                made = self._started().map(lambda worker, part: worker.score.remote(*part), parts)
                return [score for scores in made for score in scores]
        except ray.exceptions.RayError as error:
            reason = str(error).strip().splitlines()[-1]
            raise RewardError(f"answers could not be judged on the Ray cluster: {reason}") from error

    def close(self) -> None:
        """Ends the workers. A later call starts them again."""
        if self._pool is None:
            return
        import ray

        from bapo_lightning.ranks.ray.joining import leave

        while ray.is_initialized() and self._pool.has_free():  # an engine may have left the cluster before
            ray.kill(self._pool.pop_idle())
        self._pool = None
        if self._joined:
            self._joined = False
            leave()

    def _started(self) -> Any:
        if self._pool is None:
            import ray
            from ray.util import ActorPool

            from bapo_lightning.ranks.ray.joining import join

            self._joined = join(self.address, self.cpus * self.workers)
            worker = ray.remote(VerdictWorker).options(
                num_cpus=self.cpus, max_restarts=-1, max_task_retries=MOST_TRIES, scheduling_strategy="SPREAD"
            )
            self._pool = ActorPool([worker.remote(self.make_reward, sys.path) for _ in range(self.workers)])
        return self._pool


class VerdictWorker:
    """Judges answers in an actor."""

    def __init__(self, make_reward: Callable[[], Reward], path: Sequence[str]) -> None:
        """Makes the reward; what this node lacks of the trainer's module `path` is searched last."""
        sys.path += [folder for folder in path if folder not in sys.path]
        self._reward = make_reward()

    def score(self, problems: list[Problem], completions: list[Completion]) -> list[Score]:
        """Scores of one call."""
        return self._reward(problems, completions)
