"""Commands that a command starts itself, forked from the same warm process (`tests.commands`)."""

import os
import subprocess
import time
from contextlib import contextmanager
from importlib import import_module
from multiprocessing import forkserver, resource_tracker
from pathlib import Path
from types import SimpleNamespace

from tests.commands import Command

# Modules that start commands by `subprocess.Popen`: ranks, runs of a sweep, acts of a rehearsal.
STARTERS = [
    "bapo_lightning.system.ranks.launch",
    "bapo_lightning.tools.sweeps.job",
    "bapo_lightning.tools.rehearsal.steps",
]


class Child(Command):
    """A command of the package that another one starts, in the place of `subprocess.Popen`."""

    def __init__(self, arguments, env=None, stdout=None, stderr=None, **others):
        """Starts `[python, -m, MODULE, ...]`, with the output to a file; `others`: what every command has."""
        _, option, module, *rest = arguments
        assert option == "-m" and others.keys() <= {"stdin", "start_new_session"}
        first = _path(1 if stdout is None else stdout.fileno())
        second = first if stderr is subprocess.STDOUT else _path(2 if stderr is None else stderr.fileno())
        super().__init__(module, rest, env=env, output=[first, second])

    def wait(self):
        while self.poll() is None:
            time.sleep(0.02)
        return self.returncode

    def send_signal(self, number):
        if self.poll() is None:
            super().send_signal(number)


def _path(descriptor):
    return Path(os.readlink(f"/proc/self/fd/{descriptor}"))


@contextmanager
def forked_children():
    """Context in which the commands of the package that this process starts are forked from the warm one.

    They end with the warm process, not with this one; that is tested without this.
    """
    # The server that forked this process forks its children too; left alone, it would start one of its own.
    if forkserver._forkserver._forkserver_pid is None and forkserver.get_inherited_fds() is not None:
        forkserver._forkserver.ensure_running = resource_tracker.ensure_running
    modules = [import_module(name) for name in STARTERS]
    stand_in = SimpleNamespace(Popen=Child, STDOUT=subprocess.STDOUT, DEVNULL=subprocess.DEVNULL)
    for module in modules:
        module.subprocess = stand_in
    try:
        yield
    finally:
        for module in modules:
            module.subprocess = subprocess
