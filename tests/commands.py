"""Commands of the package in processes that are forked from a warm one, in which the heavy libraries are
imported already: a start takes a fifth of a second instead of six.

    test --(multiprocessing)--> fork server: torch, lightning, transformers, hydra ... --fork--> the command

A command sees what a new process would see: its own arguments, folder, environment, session, output files and
signal handlers, and its modules are those of the package that is tested. What it must import *itself* (is
`--help` light? are the ranks of a launcher alike?) is tested with a real process, by `subprocess`.
"""

import atexit
import fcntl
import multiprocessing
import os
import pty
import re
import runpy
import signal
import struct
import subprocess
import sys
import tempfile
import termios
import threading
import time
import traceback
from contextlib import nullcontext, suppress
from pathlib import Path

import psutil

# Imported, never started: no thread of theirs runs in the server, so that it can be forked. Not wandb, which
# makes a temporary folder when it is imported, and removes it when the first of the forks ends.
WARM = [
    "lightning", "matplotlib.backends.backend_agg", "pydantic", "transformers.models.llama.modeling_llama",
    "bapo_lightning.runs.train", "bapo_lightning.tools.evaluation.run",
    "bapo_lightning.tools.sweeps.launchers", "bapo_lightning.modules.schedules",
    "bapo_lightning.objectives.advantages.group", "bapo_lightning.extras.math.workers.pool",
    "bapo_lightning.rollout.hf.engine", "bapo_lightning.tiny_worlds.additions.task", "tests.warm_libraries",
]  # fmt: skip
SERVER = multiprocessing.get_context("forkserver")
SERVER.set_forkserver_preload(WARM)
# A start looks at all children, and an exit code can be read once: threads that start and wait take turns.
ONE_AT_A_TIME = threading.Lock()
PROGRESS = re.compile(r".+, (\d+ s|\d+:\d\d)")
STARTED_BY = "BAPO_STARTED_BY"  # variable: number of the process that a command must not outlive


def said(output):
    """Lines of an output without those that tell how long something takes on a slow machine."""
    return [line for line in output.splitlines() if not PROGRESS.fullmatch(line)]


class Command:
    """A running `python -m MODULE ARGUMENTS`, or `python FILE ARGUMENTS` where the module is a path; the
    methods are those of `subprocess.Popen`.
    """

    def __init__(
        self, module, arguments, cwd=None, env=None, pictures=False, columns=None, forks=False, output=()
    ):
        """Starts it, in the folder and with the environment of this process unless others are given.

        `pictures=False` leaves PNGs blank: those of one run take longer to draw than its updates to train.
        With `columns` it writes to a terminal of this width, and all that it wrote is standard output.
        With `forks` the commands that it starts itself are forked as well (`tests.children`).
        `output` holds files for standard output and standard error instead of its own.
        """
        started = [module] if isinstance(module, Path) else ["-m", module]
        self.args = [sys.executable, *map(str, [*started, *arguments])]
        self._folder = tempfile.TemporaryDirectory(prefix="command-")
        self._files = list(output) or [Path(self._folder.name, name) for name in ("stdout", "stderr")]
        self._terminal = None if columns is None else Terminal(columns, self._files[0])
        places = self._files if self._terminal is None else [self._terminal.name] * 2
        place = str(cwd or os.getcwd()), dict(os.environ if env is None else env)
        self._process = SERVER.Process(target=_become, args=(self.args, *place, *places, pictures, forks))
        with ONE_AT_A_TIME:
            self._process.start()

    @property
    def pid(self):
        return self._process.pid

    @property
    def returncode(self):
        """Exit code; minus the number of the signal that killed it; None while it runs."""
        with ONE_AT_A_TIME:
            return self._process.exitcode

    def poll(self):
        return self.returncode

    def send_signal(self, number):
        os.kill(self.pid, number)

    def kill(self):
        self._process.kill()

    def output(self):
        return tuple(file.read_text() if file.exists() else "" for file in self._files)

    def communicate(self, timeout=300):
        """Waits for the end and returns all output. Raises TimeoutError with it after so many seconds."""
        self._process.join(timeout)
        if self.returncode is None:
            self._process.kill()
            self._process.join()
            raise TimeoutError(f"{self.args} ran for more than {timeout} s: {self.output()}")
        if self._terminal is not None:
            self._terminal.close()
        return self.output()


class Terminal:
    """A terminal of 24 lines; what is written to it goes into a file."""

    def __init__(self, columns, file):
        self._reader, self._writer = pty.openpty()
        fcntl.ioctl(self._writer, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
        self.name = Path(os.ttyname(self._writer))
        self._thread = threading.Thread(target=self._record, args=(file,), daemon=True)
        self._thread.start()

    def close(self):
        """Waits until everything that processes wrote is in the file."""
        os.close(self._writer)
        self._thread.join(60)
        os.close(self._reader)

    def _record(self, file):
        with file.open("wb", buffering=0) as recorded, suppress(OSError):  # the last writer has closed it
            while written := os.read(self._reader, 1 << 16):
                recorded.write(written)


def run_command(
    module, *arguments, cwd=None, env=None, pictures=False, columns=None, forks=False, timeout=300
):
    command = Command(module, arguments, cwd, env, pictures, columns, forks)
    try:
        output = command.communicate(timeout)
    finally:
        if command.poll() is None:
            command.kill()
    return subprocess.CompletedProcess(command.args, command.returncode, *output)


def train(*overrides, **options):
    """Runs the main job on a few updates, of the additions unless named; `options` are `run_command`'s."""
    named = any(override.startswith("experiment=") for override in overrides)
    experiment = () if named else ("experiment=additions",)
    return run_command("bapo_lightning.cli.train", "debug=fast", *experiment, *overrides, **options)


def train_to_end(folder, batches, *overrides, **options):
    """Trains on so many rollout batches in `folder`, which must not fail, and returns what was printed."""
    done = train(*overrides, f"run_folder={folder}", f"scale.num_rollout_batches={batches}", **options)
    assert done.returncode == 0, done.stderr
    return done.stdout


def command_line(process):
    """The command of a process, and nothing of one that has ended since it was listed."""
    with suppress(psutil.NoSuchProcess):
        return " ".join(process.cmdline())
    return ""


def start_ranks(function, args, nprocs):
    """Runs `function(rank, *args)` in so many processes, as `torch.multiprocessing.spawn` does."""
    from torch.multiprocessing import start_processes

    start_processes(function, args, nprocs, start_method="forkserver")


def wait_until(condition, command, timeout=300):
    """Waits until `condition` holds, which must be before the command ends, unless it has ended already."""
    runs = command.poll() is None
    deadline = time.monotonic() + timeout
    while not condition():
        assert not runs or command.poll() is None, f"it ended before: {command.output()}"
        assert time.monotonic() < deadline, f"it took more than {timeout} s: {command.output()}"
        time.sleep(0.002)


def _become(arguments, cwd, env, stdout, stderr, pictures, forks):
    """Turns this process, fresh from the fork, into `arguments`: [python, (-m, module | file), ...]."""
    from tests.children import forked_children  # which needs this file

    os.setsid()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number, path in ((1, stdout), (2, stderr)):
        file = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_APPEND)
        os.dup2(file, number)
        os.close(file)
    sys.stdout.reconfigure(line_buffering=False)
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(env)
    if STARTED_BY in env:
        os.environ[STARTED_BY] = str(os.getppid())
    sys.orig_argv = arguments
    is_file = arguments[1] != "-m"
    sys.argv = arguments[1:] if is_file else arguments[2:]
    sys.path[0:0] = [str(Path(cwd, arguments[1]).parent) if is_file else cwd]
    if not pictures:
        leave_pictures_blank()
    try:
        with forked_children() if forks else nullcontext():
            if is_file:
                runpy.run_path(arguments[1], run_name="__main__")
            else:
                runpy.run_module(arguments[2], run_name="__main__", alter_sys=True)
    except SystemExit:
        raise
    except BaseException:
        traceback.print_exc()
        sys.exit(1)
    finally:
        atexit._run_exitfuncs()


def leave_pictures_blank():
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    draw = FigureCanvasAgg.print_png
    FigureCanvasAgg.print_png = lambda _, file: draw(FigureCanvasAgg(Figure(figsize=(0.1, 0.1))), file)
