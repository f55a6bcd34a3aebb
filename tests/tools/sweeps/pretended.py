"""A job that only pretends to train."""

import json
import sys
import time

from bapo_lightning.tools.sweeps.job import TrainJob

# Writes what a run writes; ends in order on SIGTERM, and says whether it ignores SLURM's notice.
PRETENCE = """
import json, os, pathlib, signal, sys, time
from bapo_lightning.system.orphans import end_with_starter
from bapo_lightning.system.run_folder.lock import RunLock
folder, seconds, code = sys.argv[1], float(sys.argv[2]), int(sys.argv[3])
saving = float(sys.argv[4]) if sys.argv[4:] else 0
os.makedirs(folder, exist_ok=True)
lock = RunLock(pathlib.Path(folder))
def manifest(status):
    with open(f"{folder}/manifest.json.partial", "w") as file:
        json.dump({"status": status, "ignores": signal.getsignal(signal.SIGUSR2) == signal.SIG_IGN}, file)
    os.replace(f"{folder}/manifest.json.partial", f"{folder}/manifest.json")
def stop(number, frame):
    time.sleep(saving)
    manifest("interrupted")
    sys.exit(128 + number)
if os.path.exists(f"{folder}/manifest.json"):  # the rest of a run that was lost
    seconds = 0
signal.signal(signal.SIGTERM, stop)
end_with_starter()
manifest("running")
print("threads", os.environ.get("OMP_NUM_THREADS"), end=" ")
print("gpus", os.environ.get("CUDA_VISIBLE_DEVICES"), flush=True)
time.sleep(seconds)
if code:
    sys.exit(code)
manifest("finished")
"""


class PretendedRun(TrainJob):
    """`overrides`: seconds that it takes, its exit code, and seconds that it takes to save itself."""

    @property
    def command(self):
        return [sys.executable, "-c", PRETENCE, str(self.folder), *self.overrides]

    def checkpoint(self):
        """Submits itself again, as Hydra's submitit launcher does."""
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(type(self)(self.overrides, self.folder))


def manifest(folder):
    return json.loads((folder / "manifest.json").read_text())


def wait_until(condition):
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)
