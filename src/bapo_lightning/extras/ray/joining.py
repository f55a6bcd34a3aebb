"""The Ray cluster of a command: an existing one, or one started on this machine that ends with it."""

from __future__ import annotations

import logging
import math
import os
import secrets
import socket
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from signal import SIGTERM, getsignal
from tempfile import NamedTemporaryFile
from typing import TypeVar

import ray
from ray.util import placement_group_table

from bapo_lightning.system.errors import EngineError, first_line
from bapo_lightning.system.orphans import in_background
from bapo_lightning.system.stopping import handled

Value = TypeVar("Value")
REACH_SECONDS = 10.0  # for a connection to a head node
HEAD_SECONDS = 20.0  # in which an unresponsive head node may come back
LOOK_SECONDS = 1.0  # between two checks of it
# Ray silently ends a process a minute after the loss of its head node; `check_cluster` comes first.
PATIENCE = {"RAY_gcs_rpc_server_reconnect_timeout_s": str(30 * 24 * 3600)}
# For a cluster on one machine. Ray would start a process for each core at once, each of which takes a second
# of it, and give its processes a lower priority than all others.
HERE = {"include_dashboard": False, "_system_config": {"enable_worker_prestart": False, "worker_niceness": 0}}
_gone: set[str] = set()  # addresses of clusters that were lost: later calls do not wait again
JOINED = "BAPO_RAY_ADDRESS"  # variable in ranks that Ray started, set to their cluster


def join(address: str | None, num_cpus: float, key: str) -> bool:
    """Connects this process to a cluster, unless it is connected; returns whether it must be left with
    `leave`.

    `address`: `auto` for the cluster that this machine belongs to, HOST:PORT of a head node, or None to start
    a cluster here, with at least `num_cpus`; a rank that Ray started joins the cluster that it was started
    on. `key`: key of the address, for the EngineError if there is no such cluster, or its version differs.
    """
    if ray.is_initialized():
        return False
    address = os.environ.get(JOINED, address)
    local_options = HERE | {"num_cpus": max(os.cpu_count() or 1, math.ceil(num_cpus))}
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # sends no statistics to anyone
    try:
        if address and address != "auto":
            host, _, port = address.rpartition(":")
            if not host or not port.isdigit():
                raise ValueError("this is not HOST:PORT.")
            with socket.create_connection((host, int(port)), REACH_SECONDS):  # Ray would wait for a minute
                pass
        keep_token_private(is_created=not address)
        # Ray's own handler would end a run during an update.
        with handled(SIGTERM, getsignal(SIGTERM)), patient():
            ray.init(
                address=address or "local",
                log_to_driver=False,
                logging_level=logging.ERROR,
                **({} if address else local_options),
            )
    except (ray.exceptions.RayError, ConnectionError, RuntimeError, ValueError, OSError) as error:
        wanted = f"joined at {key}={address}" if address else "started on this machine"
        cause = first_line(error).rstrip(".")
        raise EngineError(
            f"no Ray cluster could be {wanted}: {cause}. `ray status` lists the nodes of a cluster, and "
            f"{key}=null starts one on this machine only"
        ) from error
    return True


def keep_token_private(is_created: bool) -> None:
    """Restricts the token file of Ray's clusters to this user: Ray creates it with the umask's permissions.

    `is_created`: whether Ray would create a missing file, for a cluster that it starts. Raises OSError if it
    cannot be created.
    """
    path = Path.home() / ".ray" / "auth_token"
    named = {"RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"} & os.environ.keys()
    if path.is_file():
        with suppress(PermissionError):  # another user's, as in a container
            path.chmod(path.stat().st_mode & 0o700)
    elif is_created and not named and os.environ.get("RAY_AUTH_MODE", "token").lower() == "token":
        path.parent.mkdir(mode=0o700, exist_ok=True)
        with NamedTemporaryFile("w", dir=path.parent, prefix="auth_token.") as file:  # of mode 0600
            file.write(secrets.token_hex(32))
            file.flush()
            with suppress(FileExistsError):  # of a run that started at the same time
                os.link(file.name, path)


def leave() -> None:
    """Ends the connection, and the cluster if this process started it."""
    ray.shutdown()
    raylet_connection.cache_clear()
    _gone.clear()


def check_cluster() -> None:
    """Raises EngineError if the head node does not answer for `HEAD_SECONDS`, or Ray's process on this
    machine has ended: a Ray call would then wait forever, or end this process without a message.
    """
    node = ray._private.worker._global_node
    if node is None:  # left by another thread
        return
    address, give_up = node.gcs_address, time.monotonic() + HEAD_SECONDS
    host, _, port = address.rpartition(":")
    while address not in _gone and not is_closed(raylet_connection(node.raylet_socket_name)):
        try:
            with socket.create_connection((host, int(port)), REACH_SECONDS):
                return
        except OSError:
            if time.monotonic() > give_up:
                break
        time.sleep(LOOK_SECONDS)
    _gone.add(address)
    raise EngineError(
        f"the Ray cluster at {address} is gone: its head node does not answer, or Ray on this machine has "
        "ended. Start the cluster again, then continue with resume=auto"
    )


def while_alive(work: Callable[[], Value]) -> Value:
    """Value of some Ray calls that may wait for the head node. Raises EngineError once it is gone."""
    future: Future[Value] = Future()

    in_background("calls of Ray", lambda: future.set_result(work()), future.set_exception)
    while not wait([future], LOOK_SECONDS).done:
        check_cluster()
    return future.result()


@cache
def raylet_connection(path: str) -> socket.socket | None:
    """An idle connection to Ray's process on this machine, which ends with it; None if it has ended."""
    connection = socket.socket(socket.AF_UNIX)
    try:
        connection.connect(path)
    except OSError:
        connection.close()
        return None
    return connection


def is_closed(connection: socket.socket | None) -> bool:
    """Whether the other end is gone."""
    if connection is None:
        return True
    try:
        return not connection.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
    except BlockingIOError:
        return False
    except OSError:
        return True


@contextmanager
def patient() -> Iterator[None]:
    """Context in which Ray reads from the environment how long it waits for a lost head node."""
    added = {name: value for name, value in PATIENCE.items() if name not in os.environ}
    os.environ.update(added)
    try:
        yield
    finally:
        for name in added:
            del os.environ[name]


def room(cpus: float, gpus: float) -> dict[str, int]:
    """Number of actors that fit on each living node, by its id, outside placement groups."""
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
