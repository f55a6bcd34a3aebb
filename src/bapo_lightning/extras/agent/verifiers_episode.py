"""An episode of an environment of verifiers 0.4 as a program: `PYTHON verifiers_episode.py CONFIG < PROBLEM`.

CONFIG is the `env` of verifiers' evaluation, as JSON: `{"taskset": {"id": "my-tasks"}}`. The problem's text
is the number of the task in the taskset. Verifiers' own client calls the model, at OPENAI_BASE_URL. This file
runs in a Python that has verifiers, and needs nothing of this package.
"""

import asyncio
import json
import os
import sys
from importlib import import_module
from typing import Any


async def played(env_config: dict[str, Any], number: int) -> float:
    """Returns the sum of the rewards of an episode's traces. Raises RuntimeError if one has an error."""
    client = {"base_url": os.environ["OPENAI_BASE_URL"], "api_key_var": "OPENAI_API_KEY"}
    given = {"env": env_config, "client": client, "model": "policy"}
    config = _part("configs.cli.eval", "EvalConfig").model_validate(given)
    env = _part("utils.loaders", "load_environment")(config.env)
    (task,) = env.taskset.include(idx=[number])
    context = _part("clients", "ModelContext")(
        client=config.client, model=config.model, sampling=config.sampling
    )
    async with env.serving():
        episode = await env.run_slot(_part("env", "RunSlot")(task), context)
    for trace in episode.traces:
        if trace.errors:
            raise RuntimeError(str(trace.errors[-1]))
    return float(sum(trace.reward for trace in episode.traces))


def _part(module: str, name: str) -> Any:
    return getattr(import_module(f"verifiers.v1.{module}"), name)


def main() -> None:
    """Plays the episode and prints its reward."""
    number = int(json.load(sys.stdin)["task"])
    print(f"\n{asyncio.run(played(json.loads(sys.argv[1]), number))!r}")


if __name__ == "__main__":
    main()
