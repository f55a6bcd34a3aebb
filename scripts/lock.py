"""Writes `requirements.lock`: versions of what a run needs, for all platforms and Pythons that the package
supports, with the hashes of all files of each version. uv resolves them; what the file holds already stays
unless the arguments say otherwise (`--upgrade`, `--upgrade-package NAME`).

No index lists PyTorch's builds for a CPU beside those of PyPI, so their hashes are added from here.
"""

from __future__ import annotations

import os
import subprocess
import sys

from make_venv import BUILD, LOCK, ROOT, TORCH_ANY, TORCH_CPU
from steps import stop

# As PyTorch's index for CPUs gives them; of Linux's wheels those for Python 3.11, 3.12 and 3.13.
TORCH_CPU_SHA256 = {
    "torch==2.13.0+cpu": (
        "6746dbcbeb526eb61330b76b41ff1b4eb848951103a892eeb080dfa2b264667b",  # x86_64
        "4ca4a9394b0c771238a4f73590fdbbc4debad85ed0fa63d026ae1b085da7d6e2",
        "3fbf9c9d1f3c10c2d59d04aca426dee9ccc6ceb32d255c61e93acc3b4f75fae6",
        "84453b69508ec79902f899c5ed9495acb9e2bbe9fda5f1d5d6f19e3c3842e1a7",  # aarch64
        "6f307c2c32d764ffc6ff6893b801fad6d4752f3e67966cb8abf1843427c02604",
        "0b8f7d0423027ae8b90c7977c627f3379f325363a08224dffad9b4b2d684a83d",
    )
}
OPTIONS = (
    "--universal", "--python-version", "3.11", "--generate-hashes", "--no-annotate", "--quiet",
    "--no-emit-index-url", "--no-emit-find-links", "--custom-compile-command", "make lock",
)  # fmt: skip


def main() -> None:
    if TORCH_CPU not in TORCH_CPU_SHA256:
        stop(f"scripts/lock.py has no hashes of {TORCH_CPU}; they are on PyTorch's index for CPUs")
    command = [sys.executable, "-m", "uv", "pip", "compile", "pyproject.toml", "-", *OPTIONS]
    roots = "\n".join((*BUILD, TORCH_ANY))
    # uv reads none of pip's settings.
    certificates = {"SSL_CERT_FILE": os.environ["PIP_CERT"]} if "PIP_CERT" in os.environ else {}
    made = subprocess.run(
        [*command, "--output-file", LOCK, *sys.argv[1:]],
        cwd=ROOT, input=roots, text=True, env=certificates | os.environ,
    )  # fmt: skip
    if made.returncode:
        stop("uv could not resolve the requirements")
    LOCK.write_text(with_cpu_builds(LOCK.read_text()))


def with_cpu_builds(lock: str) -> str:
    """Returns the lock with the hashes of torch's builds for a CPU before those of PyPI's."""
    head = f"\n{TORCH_CPU.partition('+')[0]} \\\n"
    if head not in lock:
        stop(f"the lock has another torch than {TORCH_CPU}: move TORCH_CPU and its hashes with it")
    added = (f"    --hash=sha256:{digest} \\\n" for digest in TORCH_CPU_SHA256[TORCH_CPU])
    return lock.replace(head, head + "".join(line for line in added if line not in lock))


if __name__ == "__main__":
    main()
