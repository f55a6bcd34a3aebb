"""Weights through shared memory, wherever vLLM's worker runs; over HTTP:
test_server_engine.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.parametrize("placement", ["in_process", "child", "async"])
def test_after_each_of_five_pushes_vllm_samples_from_the_new_weights(tmp_path, folder, placement):
    worker = Path(__file__).with_name("transfer_worker.py")
    done = subprocess.run(
        [sys.executable, str(worker), placement, folder, str(tmp_path / "result")],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    differences = json.loads((tmp_path / "result").read_text())
    assert len(differences) == 5 and max(differences) < 1e-4
    assert not list(Path("/dev/shm").glob("bapo-weights-*"))
