"""vLLM servers for a run, in the foreground, restarted when they die."""

from __future__ import annotations

import signal
import socket
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from omegaconf import DictConfig

from bapo_lightning.configuration.compose import resolve
from bapo_lightning.configuration.early import refuse_early
from bapo_lightning.configuration.help import help_text
from bapo_lightning.runs.command import end_with, hydra_command
from bapo_lightning.system.errors import ConfigError, EngineError
from bapo_lightning.system.printable import as_typed

if TYPE_CHECKING:
    from bapo_lightning.configuration.run_config import RunConfig

HELP = ("serve", "serve EXP=smollm2_arithmetic", "Starts the vLLM servers of a run.")


@hydra_command("train", lambda: help_text(*HELP))
def main(composed: DictConfig) -> None:
    """Checks the configuration, and runs the servers until SIGINT or SIGTERM."""
    plain = resolve(composed)
    refuse_early(plain)
    from bapo_lightning.configuration.targets import Target
    from bapo_lightning.modules.policy.folder import model_folder_problems, model_path
    from bapo_lightning.rollout.engine import engine_class
    from bapo_lightning.rollout.vllm.server_process import local_servers

    config = served(plain)
    rollout, node = config.rollout, config.rollout.engine
    if engine_class(node.object).runs_in != "server" or rollout.serve_port is None:
        raise ConfigError(["this rollout has no server; write rollout=vllm_server"])
    if problems := list(model_folder_problems(config.model.path, config.model.made_by)):
        raise ConfigError(problems)
    engine, folder = node.options, Path(config.output_root, "serve")
    servers = local_servers(
        model_path(config.model.path),
        Target(engine["options"]).make(),
        Target(engine["transport"]).make().backend,
        str(folder),
        engine["num_servers"],
        engine["cpu_threads"],
        engine["gpus"],
        rollout.serve_port,
    )
    refuse_taken_ports([server.port for server in servers])
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    print(f"starting {len(servers)} vLLM server{'s' * (len(servers) > 1)}; output in {folder}", flush=True)
    try:
        for server in servers:
            server.start(engine["start_seconds"])
        urls = ",".join(server.url for server in servers)
        options = f"rollout=vllm_server rollout.engine.urls=[{urls}]"
        typed = as_typed(
            f'train EXP={config.name} ARGS="{options}"', f"train experiment={config.name} {options}"
        )
        print(f"ready; train with: {typed}", flush=True)
        watch(servers, engine["start_seconds"], rollout.max_restarts)
    except KeyboardInterrupt:
        print("stopping", flush=True)
    finally:
        for server in servers:
            server.stop()


def served(plain: dict[str, Any]) -> RunConfig:
    """The configuration of the servers, as for a run on this machine. Raises ConfigError."""
    from bapo_lightning.configuration.precision import settled
    from bapo_lightning.configuration.validate import validate

    return validate(settled(plain), "run")


def refuse_taken_ports(ports: Sequence[int]) -> None:
    """Raises ConfigError if another process already listens; vLLM would only report it after loading."""
    for port in ports:
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as servers do: none has to wait
            try:
                probe.bind(("127.0.0.1", port))
            except OSError as error:
                problem = f"port {port} cannot be used ({error.strerror})"
                remedy = f"write rollout.serve_port={max(ports) + 1}, or end what listens there"
                raise ConfigError([f"{problem}; {remedy}"]) from None


def watch(servers: list[Any], start_seconds: float, max_restarts: int) -> None:
    """Restarts servers that end. Raises EngineError if one ends after `max_restarts` restarts of any."""
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
    end_with(main)
