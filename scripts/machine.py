"""What the set-up asks of the machine. Standard library only: the part that runs ask as well is in the
package's `host.py`, which is read here before the package is installed.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "src"))
from bapo_lightning.host import answer, has_nvidia_gpu

__all__ = ["SUPPORTED", "answer", "has_nvidia_gpu", "is_usable"]
SUPPORTED = ("3.13", "3.12", "3.11")


def is_usable(python: str) -> bool:
    """Whether `python` starts, is a supported version, and has `ensurepip`, which Debian packages apart."""
    code = "import ensurepip, sys, venv; print('{}.{}'.format(*sys.version_info))"
    return answer(python, "-c", code) in SUPPORTED
