"""What people expect around a package holds what it says: workflow, hooks, site, images, security."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "scripts"))
from docs_site import on_page_markdown  # noqa: E402
from release import disagreements  # noqa: E402

import bapo_lightning  # noqa: E402


def test_the_workflow_runs_what_continuous_integration_runs():
    text = (ROOT / ".ci/run").read_text()
    commands = set(re.findall(r"^timed (make .*)$", text, re.MULTILINE))
    job = yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text())["jobs"]["check"]
    jobs = job["strategy"]["matrix"]["command"]
    assert {part for each in jobs for part in each.split(" && ")} == commands and len(jobs) == 9


def test_the_hooks_are_the_commands_of_lint():
    makefile = (ROOT / "Makefile").read_text()
    (recipe,) = re.findall(r"^lint:.*\n((?:\t.*\n)*)", makefile, re.MULTILINE)
    linted = {" ".join(line.split()[2:]) for line in recipe.splitlines()}
    (hooks,) = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"]
    entries = {hook["entry"].removeprefix(".venv/bin/") for hook in hooks["hooks"]}
    entries = {entry.removesuffix(" --force-exclude") for entry in entries}
    assert entries == linted


@pytest.mark.parametrize(
    ("image", "given"), [("cpu", {}), ("gpu", {"PYTHON": "python3.12", "TORCH": "torch==2.13.0"})]
)
def test_images_have_compilers_and_are_set_up_by_make(image, given):
    text = (ROOT / f"docker/{image}.Dockerfile").read_text()
    (installed,) = re.findall(r"apt-get install --no-install-recommends -y (.*?) &&", text)
    assert {"gcc", "g++", "make"} <= set(installed.split())
    assert image == "cpu" or "python3.12-dev" in installed.split()  # the other one is Python's own
    (arguments,) = re.findall(r"^RUN make (.*)$", text, re.MULTILINE)
    words = arguments.split()
    assert [word for word in words if "=" not in word] == ["setup", "setup-vllm"]
    assert dict(word.split("=", 1) for word in words if "=" in word) == given
    done = subprocess.run(["make", "--dry-run", *words], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_links_out_of_the_site_become_text():
    text = "[a](../examples/minimal.py) [b](../CHANGELOG.md) [c](../staleness.md#x) [d](results/data.md)"
    found = "a (`examples/minimal.py`) b (`CHANGELOG.md`) [c](../staleness.md#x) [d](results/data.md)"
    assert on_page_markdown(text) == found


def test_security_points_to_the_promises():
    assert "(docs/promises.md)" in (ROOT / "SECURITY.md").read_text()


def test_the_monthly_workflow_takes_the_newest_of_what_is_held_back():
    assert "run: .ci/next" in (ROOT / ".github/workflows/next.yml").read_text()
    text, project = (ROOT / ".ci/next").read_text(), (ROOT / "pyproject.toml").read_text()
    assert os.access(ROOT / ".ci/next", os.X_OK)
    held = set(re.findall(r'^    "([\w-]+)[^"]*,<', project.partition("[project.scripts]")[0], re.MULTILINE))
    # Newer ones of Hydra's are no releases.
    assert held == {"torch", "transformers", "hydra-core", "omegaconf"}
    assert all(re.search(rf"pip install .*\b{one}\b", text) for one in ("torch", "transformers", "lightning"))


def test_a_release_needs_one_version_in_all_files():
    assert disagreements(bapo_lightning.__version__, ROOT) == []
    files = [text.split()[0] for text in disagreements("9.9.9", ROOT)]
    assert files == ["src/bapo_lightning/__init__.py", "CITATION.cff", "CHANGELOG.md"]
    jobs = yaml.safe_load((ROOT / ".github/workflows/release.yml").read_text())["jobs"]
    assert jobs["publish"]["permissions"] == {"id-token": "write"} and "permissions" not in jobs["build"]


def test_no_folder_of_tests_hides_a_package():
    """Were tests/rollout on the path, its folder vllm would be taken for vLLM by whoever asks for it."""
    assert [entry for entry in sys.path if Path(entry).resolve().is_relative_to(ROOT / "tests")] == []
