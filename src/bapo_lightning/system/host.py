"""Equipment of this machine for a run on GPUs: devices, driver, compilers. Functions that the set-up calls
before torch is installed use only the standard library.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from shutil import which
from sysconfig import get_paths

# CUDA's major version -> oldest driver for programs built for it (NVIDIA's minor version compatibility).
OLDEST_DRIVER = {12: 525, 13: 580}
# PyTorch publishes 2.13 for CUDA 12.6, 13.0 (the one on PyPI) and 13.2.
BUILD_FOR_CUDA_12 = (
    "make clean setup TORCH=torch==2.13.0+cu126 PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cu126"
)
# Language -> the variable that names a compiler, and the ones Triton and Inductor look for without it.
COMPILERS = {
    "C": ("CC", ("gcc", "clang")),
    "C++": ("CXX", ("clang++" if sys.platform == "darwin" else "g++",)),
}
# Read when torch's allocator for GPUs starts; the first one wins.
ALLOCATOR_VARIABLES = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")
GROWING_SEGMENTS = "expandable_segments:True"


def has_nvidia_gpu() -> bool:
    """Whether the driver lists a GPU or its device file exists (containers may not have nvidia-smi)."""
    return "GPU 0" in answer("nvidia-smi", "-L") or any(
        re.fullmatch(r"nvidia\d+", device.name) for device in Path("/dev").glob("nvidia*")
    )


def driver_version(file: Path = Path("/proc/driver/nvidia/version")) -> str:
    """Version of NVIDIA's driver, such as 535.129.03; empty if it cannot be found."""
    text = answer("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader")
    if not text and file.is_file():
        text = file.read_text()
    match = re.search(r"\b\d{3,}\.\d+(\.\d+)?\b", text)
    return match.group() if match else ""


def unused_gpu() -> str | None:
    """Why torch cannot use this machine's GPU, and what to do; None if it can, or without visible GPUs."""
    import torch

    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    is_hidden = visible is not None and visible.strip() in ("", "-1")
    if torch.cuda.is_available() or is_hidden or not has_nvidia_gpu():
        return None
    cuda = torch.version.cuda
    if cuda is None:
        return f"torch {torch.__version__} is built without CUDA; install a build with it: make clean setup"
    built, driver = f"torch {torch.__version__} (CUDA {cuda})", driver_version()
    major, release = int(cuda.partition(".")[0]), int(driver.partition(".")[0] or 0)
    if 0 < release < OLDEST_DRIVER.get(major, 0):
        needs = f"{built} needs NVIDIA's driver {OLDEST_DRIVER[major]} or newer, and this one is {driver}"
        instead = f", or, without vLLM, take the build for CUDA 12.6: {BUILD_FOR_CUDA_12}"
        return f"{needs}; update it{instead if release >= OLDEST_DRIVER[12] and major > 12 else ''}"
    selected = f" and CUDA_VISIBLE_DEVICES={visible}" if visible is not None else ""
    return (
        f"{built} finds no GPU under NVIDIA's driver {driver or 'of unknown version'}{selected} "
        f"({_torchs_reason()}); see whether nvidia-smi lists it here (containers: docker run --gpus all)"
    )


def _torchs_reason() -> str:
    import torch

    try:
        torch.cuda.init()
    except Exception as error:  # of whichever layer is at fault
        return str(error).partition("\n")[0] or type(error).__name__
    return "torch gives no reason"


def missing_to_build(language: str) -> str | None:
    """Missing tool for building a Python module (Triton's launcher: C, torch.compile's: C++), or None."""
    variable, known = COMPILERS[language]
    if not any(map(which, [os.environ[variable]] if variable in os.environ else known)):
        return f"a {language} compiler ({' or '.join(known)}, or the one that {variable} names)"
    if not Path(get_paths()["include"], "Python.h").is_file():
        return "Python's header files (python3-dev)"
    return None


def num_cores() -> int:
    """Number of cores that this process may use, which containers and schedulers limit."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


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


def let_segments_grow() -> None:
    """Lets torch merge free memory of a GPU, unless torch's variables are set: micro-batches differ."""
    if not any(name in os.environ for name in ALLOCATOR_VARIABLES):
        os.environ[ALLOCATOR_VARIABLES[0]] = GROWING_SEGMENTS
