"""Writes `locks/`, which `make setup LOCKED=1` installs: exact versions with the hashes of all their files, for
Linux and macOS and every Python that pyproject.toml takes. uv resolves them; it reads UV_..., not PIP_...

    build.txt      pip and setuptools
    packages.txt   what pyproject.toml requires, all but torch
    torch.txt      torch of PyPI with its CUDA libraries
    torch-cpu.txt  torch for a CPU on Linux, from where uv is set up to look or else from PyTorch's index
    dev.txt        what the extra `dev` adds

Each file leaves out what those before it have, at the same versions. torch-cpu.txt is kept as it is where neither
place has that build.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from make_venv import BUILD, LOCKS, ROOT, TORCH_CPU

COMPILE = (
    sys.executable, "-m", "uv", "pip", "compile", "--quiet", "--universal", "--python-version", "3.11",
    "--generate-hashes", "--no-header", "--no-annotate",
)  # fmt: skip


def main() -> None:
    LOCKS.mkdir(exist_ok=True)
    public, given = TORCH_CPU.partition("+")[0], ("build", "packages")
    write("build", BUILD)
    # Of torch's own requirements networkx is the one that nothing else has.
    write("packages", [".", "networkx"], given=("build",), no_torch=True)
    write("torch", [public], given=given)
    if not write("torch-cpu", [TORCH_CPU], given=given) and not write(
        "torch-cpu", [TORCH_CPU], "--torch-backend", "cpu", given=given
    ):
        print(f"lock: locks/torch-cpu.txt stays as it is: {TORCH_CPU} is not within reach")
    write("dev", [".[dev]"], given=given, alike=("torch",), no_torch=True)


def write(
    name: str,
    wanted: list[str] | tuple[str, ...],
    *options: str,
    given: tuple[str, ...] = (),
    alike: tuple[str, ...] = (),
    no_torch: bool = False,
) -> bool:
    """Writes one file; returns False for one that cannot be had and may be absent, and ends otherwise."""
    with tempfile.TemporaryDirectory() as folder:
        wishes, without = Path(folder, "wishes.in"), Path(folder, "without.txt")
        wishes.write_text("\n".join(wanted) + "\n")
        without.write_text("torch; python_full_version < '3'\n")  # never: pip gets torch before the rest
        command = [*COMPILE, *options, str(wishes), "--output-file", str(Path(folder, "lock.txt"))]
        command += ["--override", str(without)] if no_torch else []
        for other in (*given, *alike):
            command += ["--constraint", str(LOCKS / f"{other}.txt")]
        for package in {package for other in given for package in names(other)}:
            command += ["--no-emit-package", package]
        command += ["--no-emit-package", "bapo-lightning"]
        # Of two builds of a version uv would take that of a folder, CPU's for `torch` as well.
        own = {key: value for key, value in os.environ.items() if name != "torch" or key != "UV_FIND_LINKS"}
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env=own)
        if done.returncode == 0:
            (LOCKS / f"{name}.txt").write_text(Path(folder, "lock.txt").read_text())
        elif name != "torch-cpu":
            sys.exit(f"lock: {name} could not be resolved: {done.stderr.strip()}")
        return done.returncode == 0


def names(name: str) -> list[str]:
    return re.findall(r"^([a-z0-9-]+)==", (LOCKS / f"{name}.txt").read_text(), re.MULTILINE)


if __name__ == "__main__":
    main()
