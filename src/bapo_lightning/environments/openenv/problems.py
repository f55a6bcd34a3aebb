"""Problems that are beginnings of an OpenEnv world, for `world.OpenEnv`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from bapo_lightning.data.problems.held_out import Part
from bapo_lightning.environments.openenv.observations import digest, shown
from bapo_lightning.environments.openenv.server import Server
from bapo_lightning.environments.openenv.session import Refusal, Session, SessionLost
from bapo_lightning.errors import DataError, EnvironmentFault
from bapo_lightning.types import Problem
from bapo_lightning.values import CountOrZero, Seconds, Size

TOOLS = "{tools}"  # in a prompt: what the tools of the world are, a line of JSON for each


def openenv_problems(
    server: Server,
    world: str,
    count: Size,
    split: Part,
    prompt: str = "{observation}",
    messages: str | None = None,
    reset: Mapping[str, Any] | None = None,
    first: CountOrZero = 0,
    seconds: Seconds = 60.0,
) -> list[Problem]:
    """Returns `count` beginnings of a world, each after a reset with a seed of its own.

    Even seeds train and odd ones validate. A world that takes no seed begins alike under all of them.

    Args:
        server: that has the world; it is asked once for each problem, and once more for the first one.
        world: name of the world, in the names of the problems.
        count: number of problems.
        split: split whose seeds are used.
        prompt: template of what the policy reads first: {observation}, fields of it, and {tools} for what an
            MCP server says of its tools.
        messages: field of what the reset shows that has the prompt as messages, for data/prompt=messages.
        reset: options of each reset beside its seed.
        first: number of seeds of the split to skip.
        seconds: in which a reset must be answered.

    Returns:
        Problems without an answer; `metadata` has the options of the reset, and a digest of what it shows.

    Raises:
        DataError: the server cannot be reached, refuses the options, or begins in another way each time.
    """
    begin = 2 * first + (split == "validation")
    options = [{**(reset or {}), "seed": seed} for seed in range(begin, begin + 2 * count, 2)]
    try:
        session = server.open(seconds)
        try:
            return _made(session, world, prompt, messages, options)
        finally:
            session.close()
    except (EnvironmentFault, SessionLost, Refusal) as error:
        raise DataError(f"the OpenEnv world {world} cannot begin with {options[0]}: {error}") from None
    finally:
        server.close()


def _made(
    session: Session, world: str, prompt: str, messages: str | None, options: list[dict[str, Any]]
) -> list[Problem]:
    begun = [session.reset(each) for each in options]
    if digest(session.reset(options[0])) != digest(begun[0]):
        raise DataError(
            f"the OpenEnv world {world} begins in another way each time with {options[0]}; write options in "
            "`reset` that settle how it begins"
        )
    parts, tools = prompt.split(TOOLS), _tools(session) if TOOLS in prompt else ""
    return [
        Problem(
            id=f"{world}/{each['seed']}",
            prompt=tools.join(shown(seen.observation, part) for part in parts),
            answer="",
            source=world,
            metadata={
                **({"messages": seen.observation[messages]} if messages is not None else {}),
                "reset": each,
                "opening": digest(seen),
            },
        )
        for each, seen in zip(options, begun, strict=True)
    ]


def _tools(session: Session) -> str:
    tools = session.step({"type": "list_tools"}).observation.get("tools") or []
    return "\n".join(json.dumps(tool, ensure_ascii=False) for tool in tools)
