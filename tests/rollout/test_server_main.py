"""A vLLM server ends with its owner, also when it hangs in its start and catches SIGTERM. Needs no vLLM."""

import signal
import subprocess
import sys

import psutil

HANGING = """
import signal, subprocess, sys, threading, time
from bapo_lightning.rollout.vllm import server_main
server_main.END_SECONDS = 0.2
signal.signal(signal.SIGTERM, lambda *_: None)
threading.Thread(target=server_main.end_when_stdin_closes, daemon=True).start()
engine = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"])
print(engine.pid, flush=True)
while True:
    time.sleep(1000)
"""


def test_a_server_that_hangs_in_its_start_does_not_outlive_its_owner():
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    server = subprocess.Popen([sys.executable, "-c", HANGING], start_new_session=True, **pipes)
    engine = psutil.Process(int(server.stdout.readline()))
    server.stdin.close()  # as the kernel does it when the owner is killed
    assert server.wait(60) == -signal.SIGKILL
    psutil.wait_procs([engine], timeout=60)
    assert not engine.is_running() or engine.status() == psutil.STATUS_ZOMBIE
