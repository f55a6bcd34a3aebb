"""The control plane of one vLLM server: health, weight updates, caches. `server` generates."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any, Generic

from pydantic import Field

from bapo_lightning.rollout.engine import EngineDied
from bapo_lightning.system.errors import EngineError
from bapo_lightning.system.peers import PeerFault, PeerRefusal
from bapo_lightning.system.peers.answers import Answer, Item, Kind, TokenCount
from bapo_lightning.system.peers.wire import ask, fetch

RESET_TRIES, RESET_SECONDS = 20, 0.05  # requests just given up may hold their blocks a moment longer
TOKENS_COUNTER = b"vllm:generation_tokens_total"


class ServedModel(Answer):
    """A model or adapter that a server serves; models come first, with their longest sequence in tokens."""

    id: str
    max_model_len: TokenCount | None = None


class ServedModels(Answer):
    """Answer of /v1/models."""

    data: Annotated[tuple[ServedModel, ...], Field(min_length=1)]


class Results(Answer, Generic[Item]):
    """Answer of /collective_rpc, with the result of each worker."""

    results: Annotated[tuple[Item, ...], Field(min_length=1)]


class WorldSizeAnswer(Answer):
    """Answer of /get_world_size."""

    world_size: Annotated[int, Field(ge=1, lt=1 << 20)]


class Held(Answer):
    """Answer of /weight_info."""

    weight_version: str


class Reset(Answer):
    """Answer of /reset_prefix_cache."""

    success: bool


# Results of methods other than a problem or nothing: names of missing weights, digests by group.
RESULTS: dict[str, type[Results[Any]]] = {
    "end_reload": Results[tuple[str, ...]],
    "weight_digests": Results[dict[str, int]],
}


class ServerClient:
    """Calls one server, which has VLLM_SERVER_DEV_MODE=1, with a deadline of `timeout` seconds. Every method
    may raise EngineDied, if the server is gone, hangs, reports a dead engine or sends an impossible answer,
    and EngineError, if it refuses.
    """

    def __init__(self, url: str, timeout: float) -> None:
        self.url = url.rstrip("/")
        self.timeout = timeout
        self.lost = False  # set with EngineDied: a server whose engine hangs still reports itself healthy

    def is_healthy(self) -> bool:
        """Whether it answers and its engine lives."""
        try:
            fetch(f"{self.url}/health", min(self.timeout, 10))
        except PeerFault:
            return False
        return True

    def model(self) -> tuple[str, int]:
        """Returns name and longest sequence, in tokens, of the model it serves."""
        card = self._ask(ServedModels, "/v1/models").data[0]
        with self.deaths():
            if card.max_model_len is None:
                raise PeerFault(f"{self.url}/v1/models does not name the longest sequence of {card.id}")
        return card.id, card.max_model_len

    def init_weight_transfer_engine(self, init_info: dict[str, Any]) -> None:
        """Prepares weight transfer, once after the server's start."""
        self._command("/init_weight_transfer_engine", {"init_info": init_info})

    def update_weight_version(self, version: str) -> None:
        """Sets the version of the weights held."""
        self._command("/update_weight_version", {"new_version": version})

    def call_workers(self, method: str, *arguments: Any) -> list[Any]:
        """Returns the results of a method of `weights.WorkerExtension` on all workers."""
        body = {"method": method, "args": arguments}
        return list(self._ask(RESULTS.get(method, Results[str | None]), "/collective_rpc", body).results)

    def get_world_size(self) -> int:
        """Returns the number of the server's workers."""
        return self._ask(WorldSizeAnswer, "/get_world_size").world_size

    def weight_version(self) -> str:
        """Returns the version of the weights it holds."""
        return self._ask(Held, "/weight_info").weight_version

    def pause(self) -> None:
        """Stops the server's steps; running requests stay as they are."""
        self._command("/pause?mode=keep&clear_cache=false", {})

    def resume(self) -> None:
        """Continues after `pause`; does nothing otherwise."""
        self._command("/resume", {})

    def reset_prefix_cache(self, with_running: bool = False) -> None:
        """Drops results of older weights. Running requests are recomputed if `with_running`, else refused."""
        flags = "?reset_running_requests=true" if with_running else ""
        for _ in range(RESET_TRIES):
            if self._ask(Reset, f"/reset_prefix_cache{flags}", {}).success:
                return
            time.sleep(RESET_SECONDS)
        raise EngineError(
            f"{self.url} did not reset its prefix cache after new weights: requests are still running"
        )

    def _ask(self, kind: type[Kind], path: str, body: dict[str, Any] | None = None) -> Kind:
        with self.deaths():
            return ask(kind, f"{self.url}{path}", self.timeout, body)

    def _command(self, path: str, body: dict[str, Any]) -> None:
        with self.deaths():
            fetch(f"{self.url}{path}", self.timeout, body)

    @contextmanager
    def deaths(self) -> Iterator[None]:
        """Turns a PeerFault into EngineDied, since a server with impossible answers is as useless as a dead
        one, and a refusal by a healthy server into EngineError.
        """
        try:
            yield
        except PeerRefusal as error:
            if self.is_healthy():
                raise EngineError(str(error)) from None
            self.lost = True
            raise EngineDied(f"{error}; its engine is dead") from None
        except PeerFault as error:
            self.lost = True
            raise EngineDied(str(error)) from None


def is_refusal(error: BaseException) -> bool:
    """Whether a server refused a request; statuses from 500 on are faults of the server instead."""
    return isinstance(error, PeerRefusal) and error.status < 500


def named(error: BaseException, client: ServerClient) -> str:
    """Returns the message of an error, with its server."""
    text = str(error) or type(error).__name__
    return text if client.url in text else f"{client.url}: {text}"


def tokens_generated(metrics: bytes) -> float:
    """Returns the sum of vLLM's token counters in its Prometheus text. Raises PeerFault if unreadable."""
    counters = [line.rsplit(b" ", 1)[-1] for line in metrics.splitlines() if line.startswith(TOKENS_COUNTER)]
    try:
        if math.isfinite(total := math.fsum(map(float, counters))):
            return total
    except (ValueError, OverflowError):
        pass
    raise PeerFault(f"{TOKENS_COUNTER.decode()} in its /metrics is not a number")
