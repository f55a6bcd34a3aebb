"""One engine per trainer rank, and one engine over two ranks, beside the trainer's process group."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.builders import random_model

ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.parametrize("tensor_parallel_size", [1, 2])
def test_two_ranks_sync_sample_and_keep_their_process_group(tmp_path, tensor_parallel_size):
    random_model().save_pretrained(tmp_path / "model")
    worker, environment = Path(__file__).with_name("spmd_worker.py"), {**os.environ, "PYTHONPATH": str(ROOT)}

    def start(rank):
        arguments = [
            str(rank),
            str(tmp_path / "rendezvous"),
            str(tmp_path / "model"),
            str(tensor_parallel_size),
            str(tmp_path / f"{rank}"),
        ]
        return subprocess.Popen(
            [sys.executable, str(worker), *arguments], env=environment, stderr=subprocess.PIPE, text=True
        )

    for process in [start(0), start(1)]:
        _, errors = process.communicate(timeout=300)
        assert process.returncode == 0, errors
    first, second = (json.loads((tmp_path / str(rank)).read_text()) for rank in (0, 1))
    assert first["total"] == second["total"] == 3
    assert max(first["differences"] + second["differences"]) < 1e-4
    assert (first["tokens"] == second["tokens"]) == (tensor_parallel_size == 2)
