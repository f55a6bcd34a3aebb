"""Keeps a run going when its engine's process dies or hangs: restart, weights again, and only what was
interrupted is sampled again.

A request's draw depends on its seed alone, so that what is sampled again is what the dead engine would have
sampled.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence

from bapo_lightning.errors import EngineError
from bapo_lightning.rollout.engine import (
    EngineDied,
    Generation,
    GenerationRequest,
    RolloutEngine,
    SamplingParams,
)


class EngineRecovery:
    """Restarts a dead engine, at most so many times in a run. It does not send weights: whoever owns the
    policy does.
    """

    def __init__(self, max_restarts: int) -> None:
        """`max_restarts`: an engine that dies more often has a cause that restarts do not cure."""
        self.max_restarts = max_restarts
        self.num_restarts = 0
        self._num_taken = 0

    def take_restarts(self) -> int:
        """Restarts since this was last asked."""
        fresh, self._num_taken = self.num_restarts - self._num_taken, self.num_restarts
        return fresh

    def restart(self, engine: RolloutEngine, death: EngineError) -> None:
        """Start `engine` anew, again if it dies while it starts.

        Raises:
            EngineError: the restarts are used up; tells the last reason.
        """
        while self.num_restarts < self.max_restarts:
            self.num_restarts += 1
            print(
                f"rollout engine lost ({death}); restart {self.num_restarts} of at most {self.max_restarts}",
                file=sys.stderr,
                flush=True,
            )
            try:
                return engine.restart()
            except EngineError as error:
                death = error
        raise EngineError(
            f"the rollout engine died after {self.num_restarts} restarts ({death}); "
            f"rollout.max_restarts={self.max_restarts} allows no more. Its log says why: look for lack of "
            "memory first"
        ) from death


def generate_all(
    engine: RolloutEngine,
    requests: Sequence[GenerationRequest],
    sampling: SamplingParams,
    revive: Callable[[EngineDied], None],
) -> list[Generation]:
    """`engine.generate`, carried on after every death of the engine until each request has its generation, in
    order.

    Args:
        engine: may raise EngineDied.
        requests: what is to be continued.
        sampling: how.
        revive: called with each death; must leave the engine with the same weights, or raise.
    """
    done: dict[int, Generation] = {}
    while len(done) < len(requests):
        pending = [place for place in range(len(requests)) if place not in done]
        try:
            fresh = dict(enumerate(engine.generate([requests[place] for place in pending], sampling)))
        except EngineDied as death:
            fresh = death.finished
            revive(death)
        done.update({pending[place]: generation for place, generation in fresh.items()})
    return [done[place] for place in range(len(requests))]
