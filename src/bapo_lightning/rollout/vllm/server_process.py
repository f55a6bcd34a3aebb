"""Starts, watches and ends one vLLM server on this machine."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch

from bapo_lightning.rollout.child.process import end_of, inherited
from bapo_lightning.rollout.vllm.http import ServerClient
from bapo_lightning.rollout.vllm.options import VLLMOptions, cache_named, command_line
from bapo_lightning.system.errors import EngineError
from bapo_lightning.system.ranks.launch import free_port
from bapo_lightning.system.supervised import Supervised

STOP_SECONDS = 15  # vLLM ends within half a second when it is well


@dataclass(eq=False)
class ServerProcess:
    """A server in its own process group, so that all of it can be ended. Its output goes to a file."""

    arguments: Sequence[str]  # vLLM's flags without host and port
    environment: Mapping[str, str]  # variables on top of those that it inherits
    log: Path  # file to which its output is appended
    port: int = field(default_factory=free_port)
    _process: Supervised | None = field(default=None, init=False)

    @property
    def url(self) -> str:
        """Base of its addresses."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def pid(self) -> int | None:
        """Process id of the HTTP server; its engine and workers are below it."""
        return self._process.process.pid if self._process is not None else None

    def is_running(self) -> bool:
        """Whether the process exists; it may still be starting, or hang."""
        return self._process is not None and self._process.process.poll() is None

    def end(self) -> str | None:
        """How the process ended, or None if it runs or was not started."""
        code = self._process.process.poll() if self._process is not None else None
        return None if code is None else end_of(code)

    def start(self, deadline_seconds: float) -> None:
        """Starts it and waits for an answer. Raises EngineError with the reason if none comes in time."""
        self.stop()
        self.log.parent.mkdir(parents=True, exist_ok=True)
        logged_before = self.log.stat().st_size if self.log.exists() else 0
        command = [sys.executable, "-m", "bapo_lightning.rollout.vllm.server_main", *self.arguments]
        command += ["--host", "127.0.0.1", "--port", str(self.port)]
        with self.log.open("ab") as log:
            self._process = Supervised(
                command,
                {**inherited(), **self.environment},
                seconds=STOP_SECONDS,
                ask=subprocess.Popen.terminate,  # it ends its workers itself
                stdin=subprocess.PIPE,  # it ends once the other end is closed
                stdout=log,
                stderr=log,
            )
        give_up = time.monotonic() + deadline_seconds
        client = ServerClient(self.url, timeout=5)
        while not client.is_healthy():
            if not self.is_running():
                reason = last_error(self.log, logged_before)
                if "--kv-cache-memory-bytes" in self.arguments:
                    reason = cache_named(reason)
                self.stop()
                raise EngineError(f"the vLLM server ended while it started: {reason} (all of it: {self.log})")
            if time.monotonic() > give_up:
                self.stop()
                raise EngineError(
                    f"the vLLM server did not answer within {deadline_seconds:.0f} s; see {self.log}"
                )
            time.sleep(0.2)

    def stop(self) -> None:
        """Ends it, gently first, and all of its process group."""
        process, self._process = self._process, None
        if process is not None:
            process.end()


def local_servers(
    model_path: str,
    options: VLLMOptions,
    backend: str | None,
    log_folder: str,
    num_servers: int,
    cpu_threads: int | None,
    gpus: Sequence[str] = (),
    first_port: int | None = None,
) -> list[ServerProcess]:
    """Makes servers for this machine, not started yet. `backend`: of vLLM's own weight transfer, if it is
    used; `cpu_threads`: of each server, None shares the cores out; `gpus`: of each server, such as "4,5";
    `first_port`: the others follow, None takes free ports.
    """
    threads = cpu_threads or max(1, (os.cpu_count() or 1) // num_servers)
    arguments, environment = server_arguments(model_path, options, backend, threads)
    servers = []
    for number in range(num_servers):
        visible = {"CUDA_VISIBLE_DEVICES": gpus[number]} if gpus else {}
        log = Path(log_folder, f"vllm-server-{number}.log")
        port = first_port + number if first_port else free_port()
        servers.append(ServerProcess(arguments, environment | visible, log, port))
    return servers


def server_arguments(
    model_path: str, options: VLLMOptions, backend: str | None, cpu_threads: int
) -> tuple[list[str], dict[str, str]]:
    """Flags and environment of a server that takes a trainer's weights."""
    if backend is not None:
        options = replace(options, lora_rank=None)  # vLLM's own weight transfer brings merged weights
    on_cpu = not torch.cuda.is_available()
    arguments = options.engine_arguments(model_path, on_cpu, inherited())
    flags = [
        *command_line(arguments),
        *(("--weight-transfer-config", f'{{"backend": "{backend}"}}') if backend else ()),
        *("--served-model-name", "policy"),
        # Not the model's own file, whose top_p, top_k and penalties would be applied silently.
        *("--generation-config", "vllm"),
        "--disable-uvicorn-access-log",
        "--enable-scale-out",  # the path whose answers are tokens with their versions
    ]
    environment = {"VLLM_SERVER_DEV_MODE": "1", "VLLM_NO_USAGE_STATS": "1"}
    if options.lora_rank is not None:
        environment["VLLM_ALLOW_RUNTIME_LORA_UPDATING"] = "1"  # lets server_main name the adapter
    if on_cpu:
        environment |= {
            "OMP_NUM_THREADS": str(cpu_threads),
            "VLLM_CPU_OMP_THREADS_BIND": "nobind",
            "OMP_WAIT_POLICY": "PASSIVE",
        }
        if arguments["enforce_eager"]:
            environment["TORCHDYNAMO_DISABLE"] = "1"
    return flags, environment


def last_error(log: Path, start: int) -> str:
    """The last line after byte `start` that names an error, and the next; else the last line."""
    with log.open("rb") as file:
        file.seek(start)
        lines = [line.strip() for line in file.read().decode(errors="replace").splitlines() if line.strip()]
    errors = [
        number
        for number, line in enumerate(lines)
        if re.match(r"[\w.]+(Error|Exception)\b", line.split("] ")[-1])
    ]
    return " ".join(lines[errors[-1] : errors[-1] + 2]) if errors else (lines or ["it wrote nothing"])[-1]
