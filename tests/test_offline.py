"""A bundle on the other side: which interpreter it takes, what its environment sees, and where it stops."""

import importlib
import json
import os
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
RUNNING = "{}.{}".format(*sys.version_info)


@pytest.fixture
def script(tmp_path, monkeypatch):
    """The script, in an unpacked bundle for the running Python."""
    monkeypatch.syspath_prepend(ROOT / "scripts")
    module = importlib.import_module("offline")
    (tmp_path / "wheels").mkdir()
    (tmp_path / "pyproject.toml").write_text((ROOT / "pyproject.toml").read_text())
    monkeypatch.setattr(importlib.import_module("steps"), "NAME", "set-up")
    monkeypatch.setattr(module, "ROOT", tmp_path)
    write_facts(tmp_path, RUNNING)
    return module


def write_facts(folder: Path, python: str) -> None:
    (folder / "wheels" / "bundle.json").write_text(json.dumps({"python": python, "platform": "linux_x86_64"}))


def test_only_a_bundle_asks_no_index(script, tmp_path, monkeypatch):
    assert script.is_bundle()
    assert script.pip_options() == ("--no-index", "--find-links", str(tmp_path / "wheels"))
    monkeypatch.setattr(script, "ROOT", ROOT)
    assert not script.is_bundle() and script.pip_options() == ()


def test_the_torch_that_is_accepted_is_that_of_the_package(script):
    assert script.accepted_torch() == ("2.11", "2.14")


@pytest.mark.parametrize(
    ("torch", "fault"),
    [
        ("2.10.1+cu128", "has torch 2.10.1+cu128"),
        ("2.11.0", ""),
        ("2.13.0rc1+cpu", ""),
        ("2.14.0", "has torch 2.14.0"),
        ("", "has no torch"),
    ],
)
def test_an_interpreter_is_judged_by_its_torch(script, monkeypatch, torch, fault):
    answers = {script.ASK_PYTHON: "3.12", script.ASK_TORCH: torch}
    monkeypatch.setattr(script, "answer", lambda python, flag, code: answers[code])
    assert script.unfit("python", "3.12") == (f"python {fault}" if fault else "")


def test_the_running_interpreter_is_kept_if_it_fits(script, monkeypatch):
    monkeypatch.setattr(script.os, "execv", lambda *arguments: pytest.fail("it fits"))
    script.use_python_with_torch("make_venv.py")


def test_another_interpreter_of_the_right_version_is_found(script, monkeypatch, tmp_path):
    write_facts(tmp_path, "3.99")
    taken = []
    monkeypatch.setattr(script, "unfit", lambda python, wanted: "" if python == "/b/python3.99" else "no")
    monkeypatch.setattr(script.shutil, "which", lambda name: f"/b/{name}")
    monkeypatch.setattr(script.os, "execv", lambda *arguments: taken.append(arguments) or sys.exit(0))
    with pytest.raises(SystemExit):
        script.use_python_with_torch("make_venv.py")
    assert taken == [("/b/python3.99", ["/b/python3.99", "make_venv.py"])]


def test_without_one_it_stops_with_one_line(script, monkeypatch, tmp_path):
    write_facts(tmp_path, "3.99")
    with pytest.raises(SystemExit) as end:
        script.use_python_with_torch("make_venv.py")
    assert end.value.code.startswith("set-up failed: this bundle is for Python 3.99 with torch 2.11 to below")
    assert f"is Python {RUNNING}" in end.value.code and "make setup PYTHON=" in end.value.code
    assert "\n" not in end.value.code


def test_an_environment_sees_the_torch_that_is_there_after_its_own_packages(script, tmp_path):
    venv = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", venv], check=True)
    assert script.share_packages(venv) == version("torch")
    command = [venv / "bin" / "python", "-c", "import sys; print(*sys.path, sep='\\n')"]
    shown = subprocess.run(command, capture_output=True, text=True, check=True, env=dict(os.environ)).stdout
    folders = [folder for folder in shown.splitlines() if folder.endswith("-packages")]
    assert folders[0].startswith(str(venv)) and len(folders) > 1
