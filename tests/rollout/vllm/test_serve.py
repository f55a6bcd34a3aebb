"""`make serve`: a server for other runs, restarted by itself."""

import os
import re
import signal
import subprocess
import sys
import threading
import time

import psutil
import pytest
from tests.rollout.vllm import test_vllm_training as training
from tests.rollout.vllm.test_vllm_training import SERVER, servers_of, start

from bapo_lightning.system.ranks.launch import free_port


@pytest.mark.drill
def test_a_run_uses_a_served_server_by_its_url_through_a_kill(tmp_path):
    options = [option for option in SERVER if not option.startswith("callbacks")]
    own = f"output_root={tmp_path}", f"rollout.serve_port={free_port()}"
    command = [sys.executable, "-m", "bapo_lightning.tools.commands.serve", *options, *own]
    serve = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        lines = iter(serve.stdout.readline, "")
        ready = next(line for line in lines if line.startswith("ready"))
        (url,) = re.findall(r"rollout\.engine\.urls=\[(\S+)\]", ready)
        own = (f"rollout.engine.urls=[{url}]", "callbacks.validation.every=0")
        process = start(tmp_path / "run", *options, *own)
        killer = threading.Thread(target=training.kill_while_it_samples, args=(serve, tmp_path / "run", (5,)))
        killer.start()
        training.finish(process)
        killer.join()
        assert sum(row["rollout/engine_restarts"] for row in training.rows(tmp_path / "run")) == 1
        assert "restart 1 of at most 3" in next(lines)
        children = psutil.Process(serve.pid).children(recursive=True)
        serve.send_signal(signal.SIGTERM)
        assert serve.wait(60) == 0
        alive = [child for child in children if child.is_running()]
        assert not [child for child in alive if child.status() != psutil.STATUS_ZOMBIE]
    finally:
        serve.kill()


@pytest.mark.drill
def test_a_server_that_is_stopped_ends_with_the_run_that_started_it_and_is_killed(tmp_path):
    process = start(tmp_path / "run", *SERVER)
    while not servers_of(process) or not (tmp_path / "run" / "metrics.jsonl").exists():
        assert process.poll() is None, process.communicate()[0]
        time.sleep(0.1)
    (server,) = servers_of(process)
    everything = [server, *server.children(recursive=True)]
    server.suspend()
    os.kill(process.pid, signal.SIGKILL)
    _, alive = psutil.wait_procs(everything, timeout=30)
    assert not [child for child in alive if child.status() != psutil.STATUS_ZOMBIE]


def test_a_rollout_without_servers_has_nothing_to_serve(tmp_path):
    command = [sys.executable, "-m", "bapo_lightning.tools.commands.serve", f"output_root={tmp_path}"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 1 and "this rollout has no server; write rollout=vllm_server" in done.stderr
