"""The data side of a worker, which obeys `controller` and trains on its share of each minibatch."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, cast

import lightning as L

from bapo_lightning.data.batches.batch import RolloutLoader, TrainBatch
from bapo_lightning.rollout.distributed import LocalEngine
from bapo_lightning.rollout.weight_sync import VersionedPolicyOwner
from bapo_lightning.system.errors import RankError
from bapo_lightning.system.orphans import end_process, in_background
from bapo_lightning.system.ranks.channel import Channel

END_SECONDS = 60  # that the controller may take to end


class WorkerDataModule(L.LightningDataModule):
    """Has no problems, no queue and no state to save. A thread serves `engines`, on which the controller
    requests samples, unless it is the same channel as `control`.
    """

    def __init__(self, engine: LocalEngine, control: Channel, engines: Channel, num_updates: int) -> None:
        super().__init__()
        self.num_updates = num_updates
        self._engine = engine
        self._control = control
        self._engines = engines
        self._thread: threading.Thread | None = None

    def train_dataloader(self) -> RolloutLoader:
        """Lightning's source of batches."""
        return RolloutLoader(self.num_updates, self.next_batch)

    def next_batch(self) -> TrainBatch:
        """This rank's share of the next minibatch."""
        return cast(TrainBatch, self._serve())

    def assist(self) -> None:
        """Obeys the controller outside of `next_batch`, until it releases this rank."""
        self._serve()

    def close(self) -> None:
        """Closes the engine and waits for its thread, which Python's end needs. May be called twice."""
        self._engine.close()
        if self._thread is not None:
            self._thread.join(END_SECONDS)

    @property
    def has_ended(self) -> bool:
        """True if, after `close`, no thread waits for the controller any more."""
        return self._thread is None or not self._thread.is_alive()

    def teardown(self, stage: str) -> None:
        """Closes."""
        self.close()

    def _serve(self) -> Any:
        owner = cast(VersionedPolicyOwner, self.trainer.lightning_module)  # type: ignore[union-attr]
        handlers: dict[str, Callable[[Any], Any]] = {
            "load_weights": lambda version: self._engine.load(owner.policy, self._control, version),
            "score": lambda work: owner.policy.response_scores(*work),
            "score_by_reference": lambda work: owner.policy.reference_logprobs(*work),
        }
        if self._engines is self._control:
            handlers |= self._engine.handlers()
        elif self._thread is None:
            self._thread = in_background("engine", self._serve_engine, end_process)
        return self._control.serve(handlers)

    def _serve_engine(self) -> None:
        with suppress(RankError):  # the trainer's thread meets the same error and reports it
            self._engines.serve(self._engine.handlers())
