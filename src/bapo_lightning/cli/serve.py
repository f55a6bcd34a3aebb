"""vLLM servers for a run, in the foreground, restarted when they die.

python -m bapo_lightning.cli.serve experiment=... rollout=vllm_server
"""

from __future__ import annotations

import signal
import sys
import time
from pathlib import Path
from types import FrameType
from typing import Any

import hydra
from omegaconf import DictConfig

from bapo_lightning.configuration.compose import resolve
from bapo_lightning.configuration.conf_dir import conf_dir
from bapo_lightning.errors import BapoLightningError, ConfigError, EngineError


@hydra.main(version_base="1.3", config_path=conf_dir(), config_name="train")
def main(config: DictConfig) -> None:
    """Check, start, watch."""
    try:
        serve(resolve(config))
    except BapoLightningError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(1)


def serve(config: dict[str, Any]) -> None:
    """Run the servers until SIGINT or SIGTERM. Raises ConfigError for a rollout that has none, EngineError
    when they keep dying.
    """
    from bapo_lightning.configuration.engine_checks import engine_complaints
    from bapo_lightning.modules.policy.folder import model_folder_problems, model_path
    from bapo_lightning.rollout.vllm.server_process import own_servers
    from bapo_lightning.runs.build_ranks import make

    rollout = config["rollout"]
    engine = rollout["engine"]
    if "transport" not in engine:
        raise ConfigError(["this rollout has no server; write rollout=vllm_server"])
    complaints = [*engine_complaints(config), *model_folder_problems(config["model"])]
    if complaints:
        raise ConfigError(complaints)
    folder = Path(config["output_root"], "serve")
    servers = own_servers(
        model_path(config["model"]["path"]),
        make(engine["options"]),
        make(engine["transport"]).backend,
        str(folder),
        engine["num_servers"],
        engine["cpu_threads"],
        engine["gpus"],
        rollout["serve_port"],
    )

    def stop(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, stop)
    print(
        f"starting {len(servers)} vLLM server{'s' if len(servers) > 1 else ''}; output in {folder}",
        flush=True,
    )
    try:
        for server in servers:
            server.start(engine["start_seconds"])
        urls = ",".join(server.url for server in servers)
        print(
            f'ready; train with: make train EXP={config["name"]} ARGS="rollout=vllm_server '
            f'rollout.engine.urls=[{urls}]"',
            flush=True,
        )
        watch(servers, engine["start_seconds"], rollout["max_restarts"])
    except KeyboardInterrupt:
        print("stopping", flush=True)
    finally:
        for server in servers:
            server.stop()


def watch(servers: list[Any], start_seconds: float, max_restarts: int) -> None:
    """Start every server that has ended anew. Raises EngineError when one ends after `max_restarts` restarts
    of all together.
    """
    restarts = 0
    while True:
        time.sleep(1)
        for server in servers:
            if server.is_running():
                continue
            if restarts >= max_restarts:
                raise EngineError(
                    f"{server.url} ended, and rollout.max_restarts={max_restarts} allows no more restarts; "
                    "see its log"
                )
            restarts += 1
            print(f"{server.url} ended; restart {restarts} of at most {max_restarts}", flush=True)
            server.start(start_seconds)


if __name__ == "__main__":
    main()
