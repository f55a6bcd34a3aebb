"""What the package starts ends with the process that started it, also while it is stopped."""

import subprocess
import sys
from contextlib import suppress

import psutil
import pytest
from run_comparison import ranks_of
from tests.commands import Command, wait_until

from bapo_lightning.system.run_folder.lock import is_held

SECONDS = 5  # for all processes to end
# Each starts processes, and waits for a sign of the last of them.
STARTERS = {
    "engine": """
import pickle
from functools import partial
from types import SimpleNamespace
from bapo_lightning.rollout.child.process import ChildProcess
started = ChildProcess({})
started.ask((sys.path, [], None, pickle.dumps(partial(SimpleNamespace, version=0))), 60)
""",
    "programs of the policy": """
from bapo_lightning.extras.python.tool import Python
started = Python(workers=1)
started("pass")
""",
    "verdicts": """
from bapo_lightning.extras.math.workers.pool import VerifierPool
started = VerifierPool(2, 60, 500)
started.judge([("x", "x")])
""",
    "run of a sweep": """
import threading, time
from pathlib import Path
from tests.tools.sweeps.pretended import PretendedRun, wait_until
folder = Path(sys.argv[1])
threading.Thread(target=PretendedRun(("600", "0"), folder / "run")).start()
wait_until((folder / "run/manifest.json").exists)
""",
    "act of a rehearsal": """
import os, time
from pathlib import Path
from bapo_lightning.tools.rehearsal.steps import start_process
os.chdir(sys.argv[1])
waits = "from bapo_lightning.system.orphans import *; end_with_starter(); print(flush=True); time.sleep(600)"
Path("act.py").write_text(waits)
started = start_process("act", [], Path("log"))
while not Path("log").read_text():
    time.sleep(0.05)
""",
    "exact worlds": """
import os, threading, time
from pathlib import Path
from types import SimpleNamespace
from studies.map import exact

folder = Path(sys.argv[1])

def run(*job):
    (folder / str(os.getpid())).touch()
    time.sleep(600)

exact.run = run
jobs = [SimpleNamespace(is_done=False)] * 2
filling = threading.Thread(target=exact.fill, args=(SimpleNamespace(processes=2, kept=None), {}, jobs))
filling.start()
while len(list(folder.iterdir())) < 2 and filling.is_alive():
    time.sleep(0.05)
""",
}
KEEPS = "import sys, time\n{}\nprint(flush=True)\ntime.sleep(600)"


def ended(processes):
    """Whether all end in time, wherever they were left."""
    left = psutil.wait_procs(processes, timeout=SECONDS)[1]
    for process in left:
        with suppress(psutil.NoSuchProcess):
            process.kill()
    return left == []


SLOW = ("act of a rehearsal", "exact worlds")  # their modules load torch


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] * (name in SLOW)) for name in STARTERS]
)
def test_what_is_stopped_ends_with_the_process_that_started_it_and_is_killed(name, tmp_path):
    command = [sys.executable, "-c", KEEPS.format(STARTERS[name]), str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as parent:
        assert parent.stdout.readline() == b"\n"
        started = psutil.Process(parent.pid).children(recursive=True)
        for process in started:
            process.suspend()
        parent.kill()
    assert started and ended(started)


@pytest.mark.slow
def test_a_rank_that_is_stopped_ends_with_its_launcher_and_so_does_one_that_waits_for_it(tmp_path):
    folder = tmp_path / "run"
    several = ["strategy=ddp", "trainer.devices=2", "scale.num_rollout_batches=500", f"run_folder={folder}"]
    launcher = Command("bapo_lightning.cli.train", ["experiment=additions", "debug=fast", *several])
    wait_until((folder / "metrics.jsonl").exists, launcher)
    ranks = ranks_of(folder)
    ranks[1].suspend()
    launcher.kill()
    launcher.communicate()
    assert len(ranks) == 2 and ended(ranks)
    assert not is_held(folder)
