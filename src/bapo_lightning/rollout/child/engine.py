"""Runs an in-process engine in another process on this machine: it samples while the trainer trains, and its
crash does not end the trainer. Weights go through shared memory; `child.main` lists the pipe's messages.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar

from bapo_lightning.rollout.child.main import ChildAnswer
from bapo_lightning.rollout.child.process import ChildProcess
from bapo_lightning.rollout.engine import (
    MERGED,
    UNSYNCED_VERSION,
    EngineDied,
    Generation,
    GenerationRequest,
    RolloutEngine,
    RunsIn,
    SamplingParams,
    StreamCall,
    Streamed,
    WeightSource,
    check_synced,
)
from bapo_lightning.rollout.weight_transport import weight_parts
from bapo_lightning.system.errors import EngineError
from bapo_lightning.system.values import CountOrZero, Megabytes, Seconds, Workers


@dataclass(eq=False)
class ChildEngine(RolloutEngine):
    """Runs an engine in a child process. Only `close` may be called while another call is at work."""

    runs_in: ClassVar[RunsIn] = "child"
    streams: ClassVar[bool] = True
    model_path: str  # Hugging Face folder or hub name
    # Called in the child as `make_engine(model_path=model_path)`; picklable, such as a partial of a class.
    make_engine: Callable[..., RolloutEngine]
    # A child that takes longer for a call of `generate`, or for a part of the weights, counts as dead.
    deadline_seconds: Seconds = 600
    start_seconds: Seconds = 900  # the same for its start and its first weights, which vLLM starts with
    cpu_threads: Workers | None = None  # of the child's kernels; None: torch's default in a new process
    # Cores that the child may use; empty: this process's cores. Ignored on systems without affinities.
    cpu_affinity: Sequence[CountOrZero] = ()
    visible_gpus: str | None = None  # GPUs of the child, such as "1" or "2,3"; None: this process's GPUs
    part_megabytes: Megabytes = 64  # additional memory of a weight sync; a larger tensor is a separate part
    _child: ChildProcess | None = field(default=None, init=False)
    _had_weights: bool = field(default=False, init=False)  # since the child's start
    _busy: threading.Lock = field(default_factory=threading.Lock, init=False)
    _closed: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        """Starts the process, so that errors of the inner engine's constructor appear before a run begins."""
        self._start()

    @staticmethod
    def problems(options: Mapping[str, Any]) -> Iterator[str]:
        """Yields options that this machine cannot meet."""
        wanted, cores = options.get("cpu_affinity", ()), range(os.cpu_count() or 1)
        missing = [core for core in wanted if core not in cores]
        if missing:
            yield (
                f"cpu_affinity={list(wanted)}: this machine has no core {missing[0]}, its cores are 0 to "
                f"{cores[-1]}"
            )

    @property
    def pid(self) -> int | None:
        """Process id of the child; None if it is not running."""
        return self._child.process.pid if self._child is not None else None

    def generate(self, requests: Sequence[GenerationRequest], sampling: SamplingParams) -> list[Generation]:
        """Samples all requests under one deadline; an interrupted call has no finished request."""
        check_synced(self.version)
        with self._talk() as child:
            return child.call(("generate", list(requests), sampling), self.deadline_seconds)

    def stream(self, call: StreamCall, sampling: SamplingParams) -> dict[int, Streamed]:
        """Samples for some steps under one deadline."""
        check_synced(self.version)
        with self._talk() as child:
            return child.call(("stream", call, sampling), self.deadline_seconds)

    def load_weights(self, source: WeightSource, version: int) -> None:
        """Sends all weights; the first ones may take as long as the start."""
        self.version = UNSYNCED_VERSION
        seconds = (
            self.deadline_seconds if self._had_weights else max(self.deadline_seconds, self.start_seconds)
        )
        with self._talk() as child:
            self._send_weights(child, source, version, seconds)
        self._had_weights = True
        self.version = version

    def weight_digests(self, seed: int) -> dict[int, dict[str, int]]:
        """Returns digests of the weights in the child."""
        with self._talk() as child:
            return {0: child.call(("weight_digests", seed), self.deadline_seconds)}

    def sleep(self) -> None:
        """Puts the child to sleep. A child's death is reported at the next `load_weights`."""
        with contextlib.suppress(EngineDied), self._talk() as child:
            if child.call(("sleep",), self.deadline_seconds) == UNSYNCED_VERSION:
                self.version = UNSYNCED_VERSION

    def restart(self) -> None:
        """Starts a new child. Raises EngineError if it ends during its start, or after `close`."""
        with self._busy:
            self._end()
            self._start()

    def close(self) -> None:
        """Ends the child. A call in another thread ends with EngineError."""
        self._closed = True
        self.version = UNSYNCED_VERSION
        if self._busy.acquire(blocking=False):
            try:
                self._end()
            finally:
                self._busy.release()
        elif (child := self._child) is not None:
            child.end()  # the thread inside the call drops it

    def _start(self) -> None:
        if self._closed:
            raise EngineError("the engine was closed")
        self._had_weights = False
        environment = {"CUDA_VISIBLE_DEVICES": self.visible_gpus} if self.visible_gpus is not None else {}
        if self.cpu_threads is not None:
            environment |= dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS"), str(self.cpu_threads))
        recipe = pickle.dumps(partial(self.make_engine, model_path=self.model_path))
        child = self._child = ChildProcess(environment)
        try:
            child.call((sys.path, tuple(self.cpu_affinity), self.cpu_threads, recipe), self.start_seconds)
            if self._closed:  # by another thread, perhaps before there was a process to kill
                raise EngineDied("the engine was closed")
        except EngineDied as death:
            self._end()
            raise EngineError(f"the rollout engine did not start: {death}") from None
        except BaseException:
            self._end()
            raise

    def _end(self) -> None:
        self.version = UNSYNCED_VERSION
        child, self._child = self._child, None
        if child is not None:
            child.stop()

    @contextlib.contextmanager
    def _talk(self) -> Iterator[ChildProcess]:
        with self._busy:
            if self._child is None:
                if self._closed:
                    raise EngineError("the engine was closed")
                raise EngineDied("its process had ended already")
            try:
                yield self._child
            except EngineDied:
                self._child.end()
                self._end()
                if self._closed:
                    raise EngineError("the engine was closed while it was at work") from None
                raise

    def _send_weights(self, child: ChildProcess, source: WeightSource, version: int, seconds: float) -> None:
        parts = weight_parts(source, self.part_megabytes)
        try:
            answer, content = child.ask(("load_weights", version), seconds)
            while answer in (ChildAnswer.FIRST, ChildAnswer.NEXT):
                if answer == ChildAnswer.FIRST:
                    parts.close()
                    parts = weight_parts(source, self.part_megabytes, content or MERGED)
                try:
                    part = next(parts, None)
                except BaseException as error:
                    child.ask(
                        f"the trainer could not send its weights ({type(error).__name__}: {error})", seconds
                    )
                    raise
                answer, content = child.ask(part, seconds)
        finally:
            parts.close()  # removes the file of the present part
        content.result()
