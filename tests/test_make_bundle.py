"""The bundle for a machine without a network: what it holds, what it leaves out, and where it stops."""

import importlib
import json
import subprocess
import sys
import tarfile
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[1]
RUNTIME = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]


@pytest.fixture
def script(tmp_path, monkeypatch):
    """The script, with an output folder of its own."""
    monkeypatch.syspath_prepend(ROOT / "scripts")
    module = importlib.import_module("make_bundle")
    monkeypatch.setattr(importlib.import_module("steps"), "NAME", "set-up")
    monkeypatch.setattr(module, "OUTPUT", tmp_path / "bundle")
    monkeypatch.setattr(module, "tracked_files", lambda: ["Makefile", "scripts/offline.py"])
    return module


def lowest(requirement: Requirement) -> str:
    """Returns the least version that a requirement names."""
    return next((each.version for each in requirement.specifier if each.operator in (">=", "==")), "1.0")


@pytest.fixture
def index(script, tmp_path, monkeypatch):
    """A folder in the place of the index: all that the package requires, wheels without code, and torch."""
    folder = tmp_path / "index"
    folder.mkdir()
    for line in [*RUNTIME, script.BUILD, script.WITH_TRITON]:
        wanted = Requirement(line)
        script.without_code(folder, canonicalize_name(wanted.name), lowest(wanted))
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


def contents(script) -> dict[str, bytes]:
    """Returns the files of the only archive, by their paths below its folder."""
    (path,) = script.OUTPUT.glob("*.tar.gz")
    with tarfile.open(path) as archive:
        files = [member for member in archive.getmembers() if member.isfile()]
        return {file.name.partition("/")[2]: archive.extractfile(file).read() for file in files}


def distributions(files) -> set[str]:
    return {canonicalize_name(Path(name).name.split("-")[0]) for name in files if name.endswith(".whl")}


@pytest.mark.slow
def test_it_holds_the_source_and_every_requirement_but_torch(script, index, capsys):
    script.main(["--python", "3.12", "--platform", "linux_aarch64"])
    files = contents(script)
    assert {"Makefile", "scripts/offline.py"} <= set(files)
    required = {canonicalize_name(Requirement(line).name) for line in RUNTIME}
    assert distributions(files) == required - {"torch"} | {"setuptools", "liger-kernel"}
    assert json.loads(files["wheels/bundle.json"]) == {"python": "3.12", "platform": "linux_aarch64"}
    shown = capsys.readouterr().out
    assert "source: 2 files" in shown and "python3.12-linux_aarch64.tar.gz: 0." in shown
    assert "tar xf" in shown and "make gpu-check PYTHON=" in shown


@pytest.mark.slow
def test_what_is_there_is_left_out_and_what_is_asked_for_is_brought(script, index, tmp_path):
    there = tmp_path / "there.txt"
    there.write_text("torch==2.12.1+cu130\nNumPy==2.9.9\nliger_kernel==0.9\nodd===1.1build1\nscipy==1.99\n")
    script.without_code(index, "pytest", "9.0")
    script.main(["--there", str(there), "--also", "pytest"])
    brought = distributions(contents(script))
    assert not brought & {"torch", "numpy", "scipy", "liger-kernel", "odd"}
    assert {"matplotlib", "pytest"} <= brought


@pytest.mark.slow
def test_a_version_that_does_not_fit_is_named(script, index, tmp_path):
    there = tmp_path / "there.txt"
    there.write_text("pydantic==1.0\n")
    with pytest.raises(SystemExit, match="cannot use the versions of --there of pydantic") as end:
        script.main(["--there", str(there)])
    assert "\n" not in end.value.code and "Remove these lines" in end.value.code


@pytest.mark.slow
def test_an_index_out_of_reach_is_one_line(script, monkeypatch):
    for name, value in {
        "CONFIG_FILE": "/dev/null",
        "FIND_LINKS": "",
        "NO_INDEX": "0",
        "RETRIES": "0",
    }.items():
        monkeypatch.setenv(f"PIP_{name}", value)
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    with pytest.raises(SystemExit) as end:
        script.main([])
    assert end.value.code.startswith("bundle failed: pip cannot reach a package index: ERROR")
    assert "\n" not in end.value.code and not list(script.OUTPUT.glob("*.tar.gz"))


def test_a_list_that_is_none_is_named(script, tmp_path):
    there = tmp_path / "there.txt"
    with pytest.raises(SystemExit, match="there is no such file"):
        script.versions_of(there)
    there.write_text("numpy @ file:///croot/numpy\n")
    with pytest.raises(SystemExit, match=r"is not NAME==VERSION; .*--format=freeze"):
        script.versions_of(there)


def test_wheels_of_older_systems_are_taken_as_well(script):
    tags = script.platforms("linux_x86_64")
    assert {"manylinux2014_x86_64", "manylinux_2_17_x86_64", "manylinux_2_28_x86_64"} <= set(tags)
    assert "manylinux_2_29_x86_64" not in tags
    assert script.platforms("macosx_11_0_arm64") == ["macosx_11_0_arm64"]


def test_the_source_is_what_git_tracks(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "scripts")
    module = importlib.import_module("make_bundle")
    monkeypatch.setattr(module, "ROOT", tmp_path)
    with pytest.raises(SystemExit, match="no clone of the repository"):
        module.tracked_files()
    subprocess.run(["git", "init", "--quiet", tmp_path], check=True)
    for name in ("kept.py", "removed.py", "own.py"):
        (tmp_path / name).touch()
    subprocess.run(["git", "-C", tmp_path, "add", "kept.py", "removed.py"], check=True)
    (tmp_path / "removed.py").unlink()
    assert module.tracked_files() == ["kept.py"]


def test_requirements_that_are_source_only_are_pinned(script):
    """The wheel that is built of one fits every machine, and one version is enough."""
    pinned = {line.partition("==")[0] for line in RUNTIME if "==" in line}
    assert set(script.SOURCE_ONLY) <= pinned


def test_make_passes_its_options_on():
    command = ["make", "--dry-run", "bundle", "ARGS=--python 3.12"]
    shown = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert "scripts/make_bundle.py --python 3.12" in shown


IMPORTS = """
import sys
for name in ("vllm", "wandb", "wandb_workspaces", "liger_kernel", "flash_attn", "triton", "psutil", "pytest"):
    sys.modules[name] = None
import gpu_check
for stage in ("kernels", "train", "memory", "speed"):
    assert gpu_check.checks_of(stage)
sys.exit(gpu_check.main(["--one", "train", "quickstart", "--device", "cpu"]))
"""


@pytest.mark.slow
def test_the_gpu_check_needs_no_package_beyond_those_of_runs():
    """The lower bound of what is there: no vLLM, no kernels, no tools, and a run that logs to files alone."""
    command = [sys.executable, "-c", IMPORTS]
    done = subprocess.run(command, cwd=ROOT / "bench", capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count('"verdict": "ok"') == 2
