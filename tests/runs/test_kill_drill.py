"""The drill of `make drill`, with fewer kills and regimes."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.slow
def test_killed_runs_end_as_if_they_had_never_stopped():
    command = [
        sys.executable,
        "bench/kill_and_resume.py",
        "--kills",
        "4",
        "--regimes",
        "partial, mask",
        "async, partial",
        "async, partial, following",
        "partial, mask, turns",
        "async, partial, turns",
    ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("as if it had never stopped") == 5
