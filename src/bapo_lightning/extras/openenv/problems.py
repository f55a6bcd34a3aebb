"""Problems that are starting states of an OpenEnv world, for `world.OpenEnv`."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from typing import Any

from bapo_lightning.data.problems.held_out import Part
from bapo_lightning.extras.openenv.observations import digest, shown
from bapo_lightning.extras.openenv.server import LOOK_SECONDS, WorldServer
from bapo_lightning.extras.openenv.session import AT_CAPACITY, Refusal, Seen, WorldSession
from bapo_lightning.system.errors import DataError, EnvironmentFault
from bapo_lightning.system.peers import PeerFault
from bapo_lightning.system.peers.answers import shortened
from bapo_lightning.system.values import CountOrZero, Seconds, Size
from bapo_lightning.types import Problem

TOOLS = "{tools}"  # in a prompt: the tools of the world, a line of JSON for each


def openenv_problems(
    server: WorldServer,
    world: str,
    count: Size,
    split: Part,
    prompt: str = "{observation}",
    messages: str | None = None,
    reset: Mapping[str, Any] | None = None,
    first: CountOrZero = 0,
    seconds: Seconds = 60.0,
) -> list[Problem]:
    """Returns `count` starting states of a world, each after a reset with a different seed.

    Even seeds train and odd ones validate. A world that ignores the seed always starts the same way.

    Args:
        server: that has the world; it gets a session for each problem, and one more for the first.
        world: name of the world, in the names of the problems.
        count: number of problems.
        split: split whose seeds are used.
        prompt: template of what the policy reads first: {observation}, fields of it, and {tools} for an MCP
            server's description of its tools.
        messages: field of the reset's observation with the prompt as messages, for data/prompt=messages.
        reset: options of each reset besides its seed.
        first: number of seeds of the split to skip.
        seconds: time limit for the answer to a reset.

    Returns:
        Problems without an answer; `metadata` has the options of the reset, and a digest of its observation.

    Raises:
        DataError: the server cannot be reached, refuses the options, or starts differently each time.
    """
    begin = 2 * first + (split == "validation")
    options = [{**(reset or {}), "seed": seed} for seed in range(begin, begin + 2 * count, 2)]
    try:
        starts = []
        for each in options:
            with _started(server, seconds, each) as (_, seen):
                starts.append(seen)
        with _started(server, seconds, options[0]) as (session, repeated):
            if digest(repeated) != digest(starts[0]):
                raise DataError(
                    f"the OpenEnv world {world} starts differently each time with {options[0]}; write "
                    "options in `reset` that fix how it starts"
                )
            session.listen()
            parts, tools = prompt.split(TOOLS), _tools(session) if TOOLS in prompt else ""
        return [
            _problem(world, each, seen, tools.join(shown(seen.observation, part) for part in parts), messages)
            for each, seen in zip(options, starts, strict=True)
        ]
    except (EnvironmentFault, PeerFault, Refusal) as error:
        reason = shortened(str(error))
        raise DataError(f"the OpenEnv world {world} cannot start with {options[0]}: {reason}") from None
    finally:
        server.close()


def _problem(
    world: str, options: Mapping[str, Any], seen: Seen, prompt: str, messages: str | None
) -> Problem:
    metadata = {"messages": _messages(seen, messages)} if messages is not None else {}
    metadata |= {"reset": options, "opening": digest(seen)}
    return Problem(f"{world}/{options['seed']}", prompt, answer="", source=world, metadata=metadata)


@contextmanager
def _started(
    server: WorldServer, seconds: float, options: Mapping[str, Any]
) -> Iterator[tuple[WorldSession, Seen]]:
    """A session of its own for each reset: there, no late answer to another reset can be mistaken for it."""
    give_up = time.monotonic() + seconds
    while True:
        with closing(server.open(seconds)) as session:
            try:
                seen = session.reset(options)
            except Refusal as error:  # a server with one place needs a moment to end the previous session
                if error.code != AT_CAPACITY or time.monotonic() > give_up:
                    raise
            else:
                yield session, seen
                return
        time.sleep(LOOK_SECONDS)


def _messages(seen: Seen, field: str) -> Any:
    if field not in seen.observation:
        raise PeerFault(f"it shows no field {field!r}, only {', '.join(seen.observation) or 'none'}")
    return seen.observation[field]


def _tools(session: WorldSession) -> str:
    tools = session.step({"type": "list_tools"}).observation.get("tools") or []
    if not isinstance(tools, list):
        raise PeerFault(f"its tools are not a list but {tools!r:.80}")
    return "\n".join(json.dumps(tool, ensure_ascii=False) for tool in tools)
