"""What the set-up asks of the machine. Standard library only."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

SUPPORTED = ("3.13", "3.12", "3.11")


def is_usable(python: str) -> bool:
    """Whether `python` starts, is a supported version, and has `ensurepip`, which Debian packages apart."""
    code = "import ensurepip, sys, venv; print('{}.{}'.format(*sys.version_info))"
    return answer(python, "-c", code) in SUPPORTED


def has_nvidia_gpu() -> bool:
    """Whether the driver lists a GPU or its device file exists (containers may lack nvidia-smi)."""
    return "GPU 0" in answer("nvidia-smi", "-L") or any(
        re.fullmatch(r"nvidia\d+", device.name) for device in Path("/dev").glob("nvidia*")
    )


def answer(*command: str | Path) -> str:
    """Standard output of a command; empty if it does not exist or fails."""
    try:
        done = subprocess.run(
            [str(part) for part in command],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            timeout=30,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""
