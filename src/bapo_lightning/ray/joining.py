"""The Ray cluster of a command: one that runs already, or one that is started on this machine and ends with
the command.
"""

from __future__ import annotations

import logging
import math
import os
import secrets
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import NamedTemporaryFile

import ray
from ray.util import placement_group_table

from bapo_lightning.errors import EngineError

REACH_SECONDS = 10.0  # for a connection to a head node
# Of a cluster on one machine. Ray would start a process for each core at once, each of which takes a second
# of it, and give its processes less time than any others.
SYSTEM = {"enable_worker_prestart": False, "worker_niceness": 0}
JOINED = "BAPO_RAY_ADDRESS"  # variable set in ranks that Ray started, to their cluster


def join(address: str | None, num_cpus: float, key: str) -> bool:
    """Connects this process to a cluster, unless it is connected; returns whether it must be left with
    `leave`.

    `address`: `auto` for the cluster that this machine belongs to, HOST:PORT of a head node, or None to start
    a cluster here, with at least `num_cpus`; a rank that Ray started joins the cluster that it was started
    on. `key`: of the address, for the EngineError when there is no such cluster, or of another version.
    """
    if ray.is_initialized():
        return False
    address = os.environ.get(JOINED, address)
    own = {
        "num_cpus": max(os.cpu_count() or 1, math.ceil(num_cpus)),
        "include_dashboard": False,
        "_system_config": SYSTEM,
    }
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # sends nothing to anybody
    try:
        if address and address != "auto":
            check_reachable(address)
        keep_token_private(is_made=not address)
        with sigterm_kept():
            ray.init(
                address=address or "local",
                log_to_driver=False,
                logging_level=logging.ERROR,
                **({} if address else own),
            )
    except (ray.exceptions.RayError, ConnectionError, RuntimeError, ValueError, OSError) as error:
        wanted = f"joined at {key}={address}" if address else "started on this machine"
        cause = next(iter(str(error).strip().splitlines()), type(error).__name__).rstrip(".")
        raise EngineError(
            f"no Ray cluster could be {wanted}: {cause}. `ray status` lists the nodes of a cluster, and "
            f"{key}=null starts one of this machine alone"
        ) from error
    return True


def check_reachable(address: str) -> None:
    """Raises OSError or ValueError unless something listens at HOST:PORT: Ray would wait for a minute."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit():
        raise ValueError("this is no HOST:PORT.")
    with socket.create_connection((host, int(port)), REACH_SECONDS):
        pass


def keep_token_private(is_made: bool) -> None:
    """Takes the token file of Ray's clusters from all users but this one: Ray makes it as the umask has it.

    `is_made`: whether Ray would make one that is missing, for a cluster of its own. Raises OSError: it cannot
    be made.
    """
    path = Path.home() / ".ray" / "auth_token"
    named = {"RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"} & os.environ.keys()
    if path.is_file():
        with suppress(PermissionError):  # another user's, as in a container
            path.chmod(path.stat().st_mode & 0o700)
    elif is_made and not named and os.environ.get("RAY_AUTH_MODE", "token").lower() == "token":
        path.parent.mkdir(mode=0o700, exist_ok=True)
        with NamedTemporaryFile("w", dir=path.parent, prefix="auth_token.") as made:  # of mode 0600
            made.write(secrets.token_hex(32))
            made.flush()
            with suppress(FileExistsError):  # of a run that started at the same time
                os.link(made.name, path)


def leave() -> None:
    """Ends the connection, and a cluster that this process started."""
    ray.shutdown()


def room(cpus: float, gpus: float) -> dict[str, int]:
    """Number of actors with so many CPUs and GPUs that each living node holds besides placement groups, by
    id.
    """
    needs = {name: need for name, need in (("CPU", cpus), ("GPU", gpus)) if need}
    free = {node["NodeID"]: dict(node["Resources"]) for node in ray.nodes() if node["Alive"]}
    for group in placement_group_table().values():
        for number, node in group["bundles_to_node_id"].items():
            if group["state"] == "CREATED" and node in free:
                for name, share in group["bundles"][number].items():
                    free[node][name] = free[node].get(name, 0.0) - share
    return {
        node: min(int(resources.get(name, 0.0) / need + 1e-6) for name, need in needs.items())
        for node, resources in free.items()
    }


def has_gpus() -> bool:
    """Whether a node of the cluster has a GPU."""
    return bool(ray.cluster_resources().get("GPU", 0))


@contextmanager
def sigterm_kept() -> Iterator[None]:
    """Context that leaves SIGTERM to its present handler: Ray's own would end a run in its update."""
    if threading.current_thread() is not threading.main_thread():
        yield  # a handler can be changed in the main thread only
        return
    handler = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, handler)
