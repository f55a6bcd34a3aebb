"""A reward whose verdicts are computed on the nodes of a Ray cluster."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import cycle, islice
from typing import Annotated, Any

from annotated_types import Le

from bapo_lightning.extras.ray import require_ray
from bapo_lightning.rewards.scores import Reward
from bapo_lightning.system.errors import RewardError, last_line
from bapo_lightning.system.values import Count, NonNegative, Threads
from bapo_lightning.types import Completion, Problem, Score

MOST_TRIES = 3  # for a call whose worker dies, and for a batch whose node is lost


@dataclass(eq=False)
class VerdictsOnNodes:
    """Callable `(problems, completions) -> scores`: divides them into calls that the workers of all nodes
    take in turn. A worker that dies is restarted, and its call repeated; if its node is lost, the others
    judge the batch again.
    """

    make_reward: Callable[[], Reward]  # called in each worker; picklable, such as a partial of a class
    address: str | None = None  # of the cluster, as in `joining.join`
    workers: Threads = 2  # spread over the nodes
    cpus: Annotated[NonNegative, Le(4096)] = 0.0  # of each worker; other tasks may have reserved all
    answers_per_call: Count = 64
    _pool: Any = field(default=None, init=False)
    _turn: threading.Lock = field(default_factory=threading.Lock, init=False)
    _joined: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        require_ray("a reward on nodes", "reward=math")

    def __call__(self, problems: list[Problem], completions: list[Completion]) -> list[Score]:
        """Scores each completion by its problem. RewardError: no nodes; EngineError: no cluster."""
        import ray

        from bapo_lightning.extras.ray.joining import while_alive

        size = self.answers_per_call
        parts = [
            (problems[first : first + size], completions[first : first + size])
            for first in range(0, len(problems), size)
        ]
        tries = 0
        with self._turn:
            while True:
                try:
                    judged = while_alive(lambda: self._judged(parts))
                    return [score for scores in judged for score in scores]
                except ray.exceptions.RayError as error:
                    self._pool = None  # its workers end, and the next ones start on nodes that are left
                    tries += 1
                    # The reward's own error would occur again.
                    if tries == MOST_TRIES or isinstance(error, ray.exceptions.RayTaskError):
                        message = f"answers could not be judged on the Ray cluster: {last_line(error)}"
                        raise RewardError(message) from error

    def here(self) -> Reward:
        """The reward in this process, to try it at the start: nodes are joined only after the engine is."""
        return self.make_reward()

    def close(self) -> None:
        """Ends the workers. A later call starts them again."""
        if self._pool is not None:
            import ray

            # An engine may already have left the cluster.
            while ray.is_initialized() and self._pool.has_free():
                ray.kill(self._pool.pop_idle())
            self._pool = None
        if self._joined:
            from bapo_lightning.extras.ray.joining import leave

            self._joined = False
            leave()

    def _judged(self, parts: Sequence[tuple[list[Problem], list[Completion]]]) -> list[list[Score]]:
        return list(self._started().map(lambda worker, part: worker.score.remote(*part), parts))

    def _started(self) -> Any:
        if self._pool is None:
            import ray
            from ray.util import ActorPool
            from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

            from bapo_lightning.extras.ray.joining import join

            self._joined |= join(self.address, self.cpus * self.workers, "reward.address")
            actor = ray.remote(VerdictWorker)
            alive = [node["NodeID"] for node in ray.nodes() if node["Alive"]]
            # Ray only spreads actors without CPUs if each is bound to its node.
            per_node = [NodeAffinitySchedulingStrategy(node, soft=False) for node in alive]
            strategies = ["SPREAD"] if self.cpus else per_node
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
