"""A reward whose verdicts are found on the nodes of a Ray cluster."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import cycle, islice
from typing import Annotated, Any

from annotated_types import Le

from bapo_lightning.errors import RewardError
from bapo_lightning.ray import require_ray
from bapo_lightning.rewards.scores import Reward
from bapo_lightning.types import Completion, Problem, Score
from bapo_lightning.values import Count, NonNegative, Threads

MOST_TRIES = 3  # of a call whose worker dies, and of a batch whose node is lost


@dataclass(eq=False)
class VerdictsOnNodes:
    """Callable `(problems, completions) -> scores`: cuts them into calls that the workers of all nodes take
    in turn. A worker that dies is made anew, and its call repeated; when its node is lost, the others judge
    the batch again.
    """

    make_reward: Callable[[], Reward]  # called in each worker; picklable, such as a partial of a class
    address: str | None = None  # of the cluster, as in `joining.join`
    workers: Threads = 2  # spread over the nodes
    cpus: Annotated[NonNegative, Le(4096)] = 0.0  # of each worker; others may have reserved all
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
        tries = 0
        with self._turn:
            while True:
                try:
                    made = self._started().map(lambda worker, part: worker.score.remote(*part), parts)
                    return [score for scores in made for score in scores]
                except ray.exceptions.RayError as error:
                    self._pool = None  # its workers end, and the next ones are where there are nodes
                    tries += 1
                    # The reward's own error would come again.
                    if tries == MOST_TRIES or isinstance(error, ray.exceptions.RayTaskError):
                        reason = str(error).strip().splitlines()[-1]
                        message = f"answers could not be judged on the Ray cluster: {reason}"
                        raise RewardError(message) from error

    def here(self) -> Reward:
        """The reward in this process, as it is tried at the start: nodes are joined after the engine is."""
        return self.make_reward()

    def close(self) -> None:
        """Ends the workers. A later call starts them again."""
        if self._pool is not None:
            import ray

            # An engine may have left the cluster before.
            while ray.is_initialized() and self._pool.has_free():
                ray.kill(self._pool.pop_idle())
            self._pool = None
        if self._joined:
            from bapo_lightning.ray.joining import leave

            self._joined = False
            leave()

    def _started(self) -> Any:
        if self._pool is None:
            import ray
            from ray.util import ActorPool
            from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

            from bapo_lightning.ray.joining import join

            self._joined |= join(self.address, self.cpus * self.workers, "reward.address")
            actor = ray.remote(VerdictWorker)
            alive = [node["NodeID"] for node in ray.nodes() if node["Alive"]]
            # Ray spreads actors without CPUs only where each must keep to its node.
            own = [NodeAffinitySchedulingStrategy(node, soft=False) for node in alive]
            strategies = ["SPREAD"] if self.cpus else own
            workers = [
                actor.options(
                    num_cpus=self.cpus,
                    max_restarts=-1,
                    max_task_retries=MOST_TRIES,
                    scheduling_strategy=strategy,
                )
                for strategy in islice(cycle(strategies), self.workers)
            ]
            self._pool = ActorPool([worker.remote(self.make_reward, sys.path) for worker in workers])
        return self._pool


class VerdictWorker:
    """Judges answers in an actor."""

    def __init__(self, make_reward: Callable[[], Reward], path: Sequence[str]) -> None:
        sys.path += [folder for folder in path if folder not in sys.path]
        self._reward = make_reward()

    def score(self, problems: list[Problem], completions: list[Completion]) -> list[Score]:
        """Scores of one call."""
        return self._reward(problems, completions)
