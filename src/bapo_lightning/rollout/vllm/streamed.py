"""Requests of a stream inside vLLM. They outlive single calls, and their tokens are kept until they are
taken, even if vLLM continues them while another call needs its loop.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from bapo_lightning.rollout.engine import SamplingParams, Streamed
from bapo_lightning.rollout.gathered import Gathered
from bapo_lightning.rollout.vllm.answers import generation_of_output
from bapo_lightning.system.errors import EngineError
from bapo_lightning.system.values import StaleContext


@dataclass(eq=False)
class StreamedRequests:
    """Names of requests in vLLM, and their results since the last call."""

    stale_context: StaleContext = "keep"  # of the last call
    sampling: SamplingParams | None = None  # of the last call
    _running: dict[str, int] = field(default_factory=dict, init=False)  # numbers by vLLM's names
    _gathered: Gathered = field(default_factory=Gathered, init=False)
    _syncs: int = field(default=0, init=False)  # number of syncs that keys and values have outlived

    @property
    def is_running(self) -> bool:
        """Whether there are requests that have not ended."""
        return bool(self._running)

    @property
    def salt(self) -> dict[str, str]:
        """Entry of a prompt that keeps the prefix cache from using keys and values of old weights."""
        return {"cache_salt": str(self._syncs)} if self._syncs else {}

    def name(self, number: int) -> str:
        """Registers a new request and returns its name in vLLM."""
        name = f"stream/{number}"
        self._running[name] = number
        return name

    def give_up(self, engine: Any, numbers: Sequence[int]) -> None:
        """Ends requests; unknown numbers are ignored."""
        gone = [name for name, number in self._running.items() if number in set(numbers)]
        if gone:
            engine.abort_request(gone)
        for name in gone:
            del self._running[name]
        self._gathered.drop(numbers)

    def kept(self, outputs: Iterable[Any], version: int) -> list[Any]:
        """Keeps the outputs of a stream, made by weights of a `version`; returns the others."""
        others = []
        for output in outputs:
            if (number := self._running.get(output.request_id)) is None:
                others.append(output)
                continue
            completion = output.outputs[0]
            assert self.sampling is not None
            fresh = generation_of_output(completion, self.sampling, version)
            if output.finished:
                del self._running[output.request_id]
            self._gathered.add(number, fresh.segment, fresh.finish if output.finished else None)
        return others

    def take(self) -> dict[int, Streamed]:
        """Returns the results of the requests since the last call."""
        return self._gathered.take()

    def forget_stale(self, llm: Any) -> None:
        """Makes vLLM drop results of old weights that no running request may keep. Raises EngineError."""
        if not self._running:
            is_reset = llm.reset_prefix_cache()
        elif self.stale_context == "recompute":
            is_reset = llm.reset_prefix_cache(reset_running_requests=True)
        else:
            is_reset = True
            self._syncs += 1
        if not is_reset:
            raise EngineError(
                "vLLM did not reset its prefix cache after new weights: requests are still running"
            )


def settle(engine: Any, step: Callable[[], object]) -> None:
    """Makes steps until all results have been returned: with asynchronous scheduling vLLM computes a step
    before it has processed the previous step.
    """
    from vllm.v1.core.sched.interface import PauseState

    core = engine.engine_core.engine_core
    if core.batch_queue:
        core.scheduler.set_pause_state(PauseState.PAUSED_ALL)
        for _ in range(core.batch_queue_size):
            step()
        core.scheduler.set_pause_state(PauseState.UNPAUSED)
