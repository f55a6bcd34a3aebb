"""An episode of an environment of verifiers 0.4 as a program: `PYTHON verifiers_episode.py CONFIG < PROBLEM`.

CONFIG is the `env` of verifiers' evaluation, as JSON: `{"taskset": {"id": "my-tasks"}}`. The problem's text
is the number of the task in the taskset. Verifiers' own client calls the model, at OPENAI_BASE_URL. This file
runs in a Python that has verifiers, and needs nothing of this package.
"""

import asyncio
import json
import os
import sys
from typing import Any


async def played(env_config: dict[str, Any], number: int) -> float:
    """Returns the sum of the rewards of an episode's traces. Raises RuntimeError if one has an error."""
    from verifiers.v1.clients import ModelContext
    from verifiers.v1.configs.cli.eval import EvalConfig
    from verifiers.v1.env import RunSlot
    from verifiers.v1.utils.loaders import load_environment

    client = {"base_url": os.environ["OPENAI_BASE_URL"], "api_key_var": "OPENAI_API_KEY"}
    config = EvalConfig.model_validate({"env": env_config, "client": client, "model": "policy"})
    env = load_environment(config.env)
    (task,) = env.taskset.include(idx=[number])
    async with env.serving():
        context = ModelContext(client=config.client, model=config.model, sampling=config.sampling)
        episode = await env.run_slot(RunSlot(task), context)
    for trace in episode.traces:
        if trace.errors:
            raise RuntimeError(str(trace.errors[-1]))
    return float(sum(trace.reward for trace in episode.traces))


def main() -> None:
    """Plays the episode and prints its reward."""
    number = int(json.load(sys.stdin)["task"])
    print(f"\n{asyncio.run(played(json.loads(sys.argv[1]), number))!r}")


if __name__ == "__main__":
    main()
