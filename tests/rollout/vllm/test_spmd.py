"""vLLM in workers: one engine per trainer rank, one over two ranks, and weights through shared memory."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ENVIRONMENT = {**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[3])}


@pytest.mark.parametrize("tensor_parallel_size", [1, 2])
def test_two_ranks_sync_sample_and_keep_their_process_group(tmp_path, folder, tensor_parallel_size):
    worker = Path(__file__).with_name("spmd_worker.py")

    def start(rank, run=""):
        given = rank, tmp_path / f"rendezvous{run}", folder, tensor_parallel_size, tmp_path / f"{rank}{run}"
        command = [sys.executable, str(worker), *map(str, given)]
        return subprocess.Popen(command, env=ENVIRONMENT, stderr=subprocess.PIPE, text=True)

    runs = ["", "b"] if tensor_parallel_size == 2 else [""]  # two at a time share no memory
    for process in [start(rank, run) for run in runs for rank in (0, 1)]:
        _, errors = process.communicate(timeout=300)
        assert process.returncode == 0, errors
    assert not list(Path("/dev/shm").glob("bapo-*-tp:0-*"))
    first, second = (json.loads((tmp_path / str(rank)).read_text()) for rank in (0, 1))
    assert first["total"] == second["total"] == 3
    assert max(first["differences"] + second["differences"]) < 1e-4
    assert (first["tokens"] == second["tokens"]) == (tensor_parallel_size == 2)


@pytest.mark.parametrize("placement", ["in_process", "child", "async"])
def test_after_each_of_five_pushes_vllm_samples_from_the_new_weights(tmp_path, folder, placement):
    worker = Path(__file__).with_name("transfer_worker.py")
    command = [sys.executable, str(worker), placement, folder, str(tmp_path / "result")]
    done = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    differences = json.loads((tmp_path / "result").read_text())
    assert len(differences) == 5 and max(differences) < 1e-4
    assert not list(Path("/dev/shm").glob("bapo-weights-*"))
