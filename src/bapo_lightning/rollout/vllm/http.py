"""The control plane of one vLLM server over HTTP: health, weight updates, caches. `server` generates."""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from typing import Any

from bapo_lightning.errors import EngineError
from bapo_lightning.rollout.engine import EngineDied

RESET_TRIES, RESET_SECONDS = 20, 0.05  # what was given up just now may hold its blocks a moment longer
# Servers are on this machine or in its cluster; a proxy of the environment leads outside.
DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))


class ServerClient:
    """Calls one server, which has VLLM_SERVER_DEV_MODE=1, with a deadline of `timeout` seconds. Every method
    may raise EngineDied, when the server is gone, hangs or reports a dead engine, and EngineError, when it
    refuses.
    """

    def __init__(self, url: str, timeout: float) -> None:
        self.url = url.rstrip("/")
        self.timeout = timeout
        self.lost = False  # set with EngineDied: a server whose engine hangs still calls itself healthy

    def is_healthy(self) -> bool:
        """Whether it answers and its engine lives."""
        try:
            with DIRECT.open(f"{self.url}/health", timeout=min(self.timeout, 10)) as response:
                return bool(response.status == 200)
        except (OSError, ValueError):
            return False

    def model(self) -> tuple[str, int]:
        """Name and longest sequence, in tokens, of the model it serves."""
        card = self._call("GET", "/v1/models")["data"][0]
        return str(card["id"]), int(card["max_model_len"])

    def init_weight_transfer_engine(self, init_info: dict[str, Any]) -> None:
        """Prepares weight transfer, once after the server's start."""
        self._call("POST", "/init_weight_transfer_engine", {"init_info": init_info})

    def update_weight_version(self, version: str) -> None:
        """Names the weights held."""
        self._call("POST", "/update_weight_version", {"new_version": version})

    def call_workers(self, method: str, *arguments: Any) -> list[Any]:
        """Results of a method of `weights.WorkerExtension` on all workers."""
        body = {"method": method, "args": arguments}
        return list(self._call("POST", "/collective_rpc", body)["results"])

    def get_world_size(self) -> int:
        """Number of the server's workers."""
        return int(self._call("GET", "/get_world_size")["world_size"])

    def weight_version(self) -> str:
        """Version stamped on the weights it holds."""
        return str(self._call("GET", "/weight_info")["weight_version"])

    def pause(self) -> None:
        """Make no further step; what is running stays as it is."""
        self._call("POST", "/pause?mode=keep&clear_cache=false")

    def resume(self) -> None:
        """Go on after `pause`; does nothing otherwise."""
        self._call("POST", "/resume")

    def reset_prefix_cache(self, with_running: bool = False) -> None:
        """Forget what was computed under older weights; running requests are computed anew or must not be."""
        flags = "?reset_running_requests=true" if with_running else ""
        for _ in range(RESET_TRIES):
            if self._call("POST", f"/reset_prefix_cache{flags}")["success"]:
                return
            time.sleep(RESET_SECONDS)
        raise EngineError(
            f"{self.url} did not reset its prefix cache after new weights: requests are still running"
        )

    def _call(self, method: str, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        data = json.dumps(body).encode() if body is not None else None
        request = urllib.request.Request(
            self.url + path, data, {"Content-Type": "application/json"}, method=method
        )
        try:
            with DIRECT.open(request, timeout=self.timeout) as response:
                return dict(json.loads(response.read() or b"{}"))
        except urllib.error.HTTPError as error:
            reason = error_message(error.read(), error.code)
            if self.is_healthy():
                raise EngineError(f"{self.url}{path} was refused: {reason}") from None
            self.lost = True
            raise EngineDied(f"{self.url} reports a dead engine at {path}: {reason}") from None
        except (OSError, ValueError) as error:
            self.lost = True
            cause = error.reason if isinstance(error, urllib.error.URLError) else error
            how = f" within {self.timeout:.0f} s" if isinstance(cause, TimeoutError) else f": {cause}"
            raise EngineDied(f"{self.url} does not answer at {path}{how}") from None


def error_message(body: bytes, status: int) -> str:
    """The reason in an error answer of vLLM."""
    try:
        error = json.loads(body)
        return str(error["error"]["message"] if "error" in error else error["detail"])
    except (ValueError, KeyError, TypeError):
        return f"HTTP {status} {body[:200].decode(errors='replace')}".strip()
