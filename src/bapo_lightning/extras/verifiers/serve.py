"""Serves an environment of `verifiers` over OpenEnv's protocol: `PYTHON serve.py PORT ENVIRONMENT [OPTIONS]`.

    reset with a seed -> row of its data set -> the prompt's messages
    step with a turn  -> env_response -> the messages that follow it; at the end the rubric's reward

It runs in a Python that has verifiers and aiohttp, and need not have this package. For verifiers before 0.4
it accepts environments that roll out by turns: `MultiTurnEnv` and all subclasses (0.3: `verifiers.legacy`).
"""

from __future__ import annotations

import json
import sys
from functools import partial
from importlib import import_module
from typing import Any

from aiohttp import WSMsgType, web


class UnservableEnvironment(Exception):
    """The environment cannot be served; the text says why."""


def library() -> Any:
    """Returns verifiers, or the module that has its environments: in 0.3 `legacy`."""
    try:
        return import_module("verifiers.legacy")
    except ModuleNotFoundError:
        return import_module("verifiers")


def loaded(name: str, options: dict[str, Any]) -> Any:
    """Returns an environment: "module:callable", or a package with a function `load_environment`. Raises
    SystemExit if it does not roll out by turns, or has tools.
    """
    module, _, maker = name.partition(":")
    environment = getattr(import_module(module.replace("-", "_")), maker or "load_environment")(**options)
    vf = library()
    if not isinstance(environment, getattr(vf, "MultiTurnEnv", ())):
        raise SystemExit(f"{name} is not a MultiTurnEnv of verifiers; only those are served")
    if getattr(environment, "tool_defs", None) or getattr(environment, "oai_tools", None):
        raise SystemExit(f"{name} has tools, whose calls are not served")
    return environment


class Episode:
    """One rollout, in which the policy's turns come from outside."""

    def __init__(self, environment: Any) -> None:
        self._env = environment
        self._state: Any = None
        self._messages: Any = None

    async def reset(self, seed: int) -> dict[str, Any]:
        """Starts with the row of a seed; rows repeat if there are more seeds. Returns the observation."""
        await self.close()
        rows = self._env.get_dataset()
        row = dict(rows[seed % len(rows)])
        row.setdefault("example_id", seed % len(rows))
        self._state = await self._env.init_state(row, _nobody(), "policy", {})
        self._state = await self._env.setup_state(self._state) or self._state
        self._messages = await self._env.get_prompt_messages(self._state)
        prompt = [_plain(message) for message in _as_list(self._messages)]
        return {"observation": {"messages": prompt}, "reward": None, "done": False}

    async def step(self, text: str) -> dict[str, Any]:
        """Takes a turn of the policy. Returns the observation."""
        state, env = self._state, self._env
        if state is None:
            raise UnservableEnvironment("there is no episode; reset first")
        before = _as_list(self._messages)
        completion = [_assistant(text)]
        await env.add_trajectory_step(
            state,
            {
                **{"prompt": before, "completion": completion, "response": None, "tokens": None},
                **{"reward": None, "advantage": None, "is_truncated": False, "extras": {}},
                "trajectory_id": state["trajectory_id"],
            },
        )
        replies: list[Any] = []
        if not (is_done := await env.is_completed(state)):
            self._messages = await env.get_prompt_messages(state)
            replies = _as_list(self._messages)[len(before) + len(completion) :]
            if is_done := await env.is_completed(state):
                replies = _as_list(state.get("final_env_response") or replies)
        reward = await self._end() if is_done else None
        content = "\n".join(_plain(message)["content"] for message in replies)
        return {"observation": {"content": content}, "reward": reward, "done": is_done}

    async def close(self) -> None:
        """Cleans up after an episode that did not end."""
        if self._state is not None:
            state, self._state = self._state, None
            await self._env.cleanup(state)

    async def _end(self) -> float:
        state = self._state
        await self.close()  # this writes the completion that the rubric reads
        await self._env.rubric.score_rollout(state)
        return float(state["reward"])


def _nobody() -> Any:
    """Takes the place of a model's client; it is never called, as turns come from outside."""
    try:
        kind = type("Nobody", (import_module(f"{library().__name__}.clients").Client,), {})
    except ModuleNotFoundError:  # before 0.1.10
        return None
    kind.__abstractmethods__ = frozenset()  # type: ignore[attr-defined]
    return object.__new__(kind)


def _assistant(text: str) -> Any:
    message = {"role": "assistant", "content": text}
    kind = getattr(import_module(f"{library().__name__}.types"), "AssistantMessage", None)
    return kind(**message) if kind is not None and isinstance(kind, type) else message


def _as_list(messages: Any) -> list[Any]:
    return [{"role": "user", "content": messages}] if isinstance(messages, str) else list(messages)


def _plain(message: Any) -> dict[str, str]:
    """A message as a role and a text."""
    content = message["content"] if isinstance(message, dict) else message.content
    role = message["role"] if isinstance(message, dict) else message.role
    if isinstance(content, list):
        parts = [part if isinstance(part, dict) else part.model_dump() for part in content]
        if any("text" not in part for part in parts):
            raise UnservableEnvironment("a message has parts that are not text")
        content = "".join(part["text"] for part in parts)
    return {"role": str(role), "content": content or ""}


async def serve(environment: Any, request: web.Request) -> web.WebSocketResponse:
    """One session: a connection with its own episode."""
    socket = web.WebSocketResponse()
    await socket.prepare(request)
    episode = Episode(environment)
    async for message in socket:
        command: Any = json.loads(message.data) if message.type is WSMsgType.TEXT else {"type": "close"}
        if command["type"] == "close":
            break
        try:
            data = command.get("data", {})
            if command["type"] == "reset":
                seen = await episode.reset(int(data.get("seed") or 0))
            else:
                seen = await episode.step(str(data["content"]))
            await socket.send_json({"type": "observation", "data": seen})
        except Exception as error:
            fault = {"code": "EXECUTION_ERROR", "message": f"{type(error).__name__}: {error}"}
            await socket.send_json({"type": "error", "data": fault})
    await episode.close()
    await socket.close()
    return socket


def main() -> None:
    """Serves at 127.0.0.1 until it is ended."""
    port, name, *options = sys.argv[1:]
    environment = loaded(name, json.loads(options[0]) if options else {})
    served = web.Application()
    served.router.add_get("/ws", partial(serve, environment))
    web.run_app(served, host="127.0.0.1", port=int(port), print=None, shutdown_timeout=1.0)


if __name__ == "__main__":
    main()
