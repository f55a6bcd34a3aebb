"""A process that has sympy and math-verify loaded and warm, and forks verifier workers from itself in
milliseconds.

    parent process  --spawn, kill-->  nursery  --fork-->  worker
           <-------- connection of each worker -------------^

It is started as a fresh interpreter (`python -m bapo_lightning.rewards.nursery`), not forked: the parent may
hold threads, CUDA and file locks that a fork would break. It has one thread and never reads an answer. When
the parent's end of the control socket closes, it kills its workers and ends.

Messages on the control socket (SOCK_STREAM, one byte each way): `s` with a file descriptor: fork a worker
that serves it, reply its process id in 8 bytes; `k` and a process id in 8 bytes: kill that worker.
"""

from __future__ import annotations

import gc
import os
import signal
import socket
import sys
from multiprocessing.connection import Connection

SPAWN, KILL = b"s", b"k"
PID_BYTES = 8


def main(control: socket.socket, memory_megabytes: int) -> None:
    """Serve the parent until it goes away."""
    from bapo_lightning.rewards.warm_up import warm_up

    warm_up()
    gc.collect()
    gc.freeze()  # a collection in a worker would write to, and so copy, every page of the shared modules
    os.dup2(
        os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno()
    )  # warnings about what a policy wrote interest nobody
    control.sendall(b"r")
    children: set[int] = set()
    while True:
        command, descriptors, _, _ = socket.recv_fds(control, 1, 1)
        _forget_the_dead(children)
        if command == SPAWN and descriptors:
            pid = os.fork()
            if pid == 0:
                control.close()
                _live(descriptors[0], memory_megabytes)
            os.close(descriptors[0])
            children.add(pid)
            control.sendall(pid.to_bytes(PID_BYTES, "big"))
        elif command == KILL:
            _kill({int.from_bytes(control.recv(PID_BYTES, socket.MSG_WAITALL), "big")} & children)
        else:
            _kill(children)
            return


def _live(descriptor: int, memory_megabytes: int) -> None:
    from bapo_lightning.rewards import worker

    try:
        worker.serve(Connection(descriptor), memory_megabytes)
    finally:
        os._exit(0)  # no clean-up of what the nursery owns


def _forget_the_dead(children: set[int]) -> None:
    """A process id stays taken until it is waited for, so that `k` can never meet a stranger."""
    for pid in list(children):
        if os.waitpid(pid, os.WNOHANG)[0] == pid:
            children.discard(pid)


def _kill(pids: set[int]) -> None:
    for pid in pids:
        os.kill(pid, signal.SIGKILL)


if __name__ == "__main__":
    main(socket.socket(fileno=int(sys.argv[1])), int(sys.argv[2]))
