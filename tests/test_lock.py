"""requirements.lock agrees with pyproject.toml, and a locked set-up takes nothing that is not in it."""

import importlib
import re
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[1]
LOCK = (ROOT / "requirements.lock").read_text()
ENTRIES = [entry for entry in re.split(r"\n(?=\S)", LOCK) if not entry.startswith("#")]
DEPENDENCIES = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
PLATFORMS = [
    {"python_version": python, "python_full_version": f"{python}.0", "sys_platform": system,
     "platform_machine": machine, "platform_system": {"linux": "Linux", "darwin": "Darwin"}[system]}
    for python in ("3.11", "3.12", "3.13")
    for system, machine in (("linux", "x86_64"), ("linux", "aarch64"), ("darwin", "arm64"))
]  # fmt: skip


@pytest.fixture
def scripts(monkeypatch, tmp_path):
    """make_venv, in an environment that asks for the lock, and lock."""
    monkeypatch.syspath_prepend(ROOT / "scripts")
    monkeypatch.setenv("LOCKED", "1")
    monkeypatch.delenv("TORCH", raising=False)
    for name in ("make_venv", "lock"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    return importlib.import_module("make_venv"), importlib.import_module("lock")


def pins(platform):
    read = [Requirement(entry.split("\\")[0]) for entry in ENTRIES]
    here = [line for line in read if line.marker is None or line.marker.evaluate(platform)]
    assert len({line.name for line in here}) == len(here)
    return {canonicalize_name(line.name): str(line.specifier).removeprefix("==") for line in here}


@pytest.mark.parametrize("platform", PLATFORMS, ids=lambda p: "-".join(list(p.values())[::2]))
def test_every_dependency_is_locked_at_a_version_in_its_range(platform, scripts):
    make_venv, _ = scripts
    locked = pins(platform)
    for line in (*DEPENDENCIES, *make_venv.BUILD, make_venv.TORCH_ANY, make_venv.TORCH_CPU.split("+")[0]):
        wanted = Requirement(line)
        assert wanted.specifier.contains(locked[canonicalize_name(wanted.name)], prereleases=True), line


def test_every_entry_has_hashes_and_no_place():
    for entry in ENTRIES:
        first, *rest = [line.removesuffix(" \\").strip() for line in entry.strip().splitlines()]
        assert re.match(r"[a-z0-9-]+==[^ ]+( ; .*)?$", first) and rest, first
        assert all(re.fullmatch(r"--hash=sha256:[0-9a-f]{64}", line) for line in rest), first
    assert "://" not in LOCK and not re.search(r"(^|\s)-(?!-hash=)", LOCK)


def test_torch_has_its_builds_for_a_cpu_and_they_are_added_once(scripts):
    make_venv, lock = scripts
    (torch,) = [entry for entry in ENTRIES if entry.startswith("torch==")]
    assert all(digest in torch for digest in lock.TORCH_CPU_SHA256[make_venv.TORCH_CPU])
    assert lock.with_cpu_builds(LOCK) == LOCK
    with pytest.raises(SystemExit, match="another torch"):
        lock.with_cpu_builds("torch==2.0.0 \\\n")


def test_a_locked_set_up_checks_every_file_in_a_new_environment(scripts, monkeypatch, tmp_path):
    make_venv, _ = scripts
    done, commands = [], []
    monkeypatch.setattr(make_venv, "LOG", tmp_path / "set-up.log")
    monkeypatch.setattr(make_venv, "has_nvidia_gpu", lambda: False)
    monkeypatch.setattr(make_venv, "answer", lambda *command: "{}.{}.{}".format(*sys.version_info))
    monkeypatch.setattr(make_venv, "pip_install", lambda *these, venv=None: done.append(these) or True)
    made = type("Done", (), {"returncode": 0})
    monkeypatch.setattr(make_venv.subprocess, "run", lambda command, **_: commands.append(command) or made)
    make_venv.make_venv(tmp_path)
    make_venv.install_torch(tmp_path)
    make_venv.install_package()
    assert "--clear" in commands[0]
    build, torch, required, own = done
    assert build == ("--require-hashes", "-r", str(tmp_path / "build.txt"))
    named = re.findall(r"^(\S+)==", (tmp_path / "build.txt").read_text(), re.MULTILINE)
    assert named == ["pip", "setuptools"]
    locked = ("--require-hashes", "-c", str(ROOT / "requirements.lock"))
    assert torch == (*locked, make_venv.TORCH_CPU)
    assert required == (*locked, "--no-build-isolation", *DEPENDENCIES)
    assert own == ("-e", ".", "--no-build-isolation", "--no-deps")
