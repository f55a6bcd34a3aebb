"""Other people's tests, unmodified, with our code in the place of theirs.

    a checkout of theirs --> its tests --import--> our stand-in in tests/zoo/others --> our objectives
                                 |
                                 +--> passed, failed, and not here: what has no counterpart, with the reason

    python -m tests.zoo.suites CHECKOUT ...

Nothing is written into a checkout. Its tests run in a process of their own, with its folder as the current
one and without its conftest, unless they need that.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from xml.etree import ElementTree

from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).resolve().parents[2]
STAND_INS = Path(__file__).parent / "others"


@dataclass(frozen=True)
class Suite:
    """Tests of a project at a commit, which later ones may have changed."""

    name: str
    stand_in: str  # module of tests/zoo/others
    repository: str  # on GitHub
    commit: str
    tests: tuple[str, ...]  # files of the checkout
    sign: str  # a file that no other project has
    own_conftest: bool = False  # which the tests need


@dataclass
class Outcome:
    """What became of the tests of a suite, by their names."""

    passed: list[str] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)  # with the first line of what was said
    not_here: dict[str, str] = field(default_factory=dict)  # with the reason


PPO = "tests/trainer/ppo/test_"
SKYRL = "tests/train/algorithms/test_"
SUITES = (
    Suite("CS336 2025", "cs336_2025", "stanford-cs336/assignment5-alignment", "eb2c562",
          ("tests/test_grpo.py",), "tests/_snapshots/test_compute_naive_policy_gradient_loss.npz",
          own_conftest=True),
    Suite("CS336 2026", "cs336_2026", "stanford-cs336/assignment5-alignment", "c2734a2",
          ("tests/test_grpo.py",), "tests/_snapshots/test_compute_rollout_rewards.npz", own_conftest=True),
    Suite("verl", "verl_stand_in", "verl-project/verl", "1dda039",
          (f"{PPO}core_algos_on_cpu.py", f"{PPO}rollout_corr.py", f"{PPO}rollout_corr_integration.py",
           f"{PPO}loss_aggregation_on_cpu.py", f"{PPO}dynamic_policy_losses_on_cpu.py"),
          "verl/trainer/ppo/core_algos.py"),
    Suite("SkyRL", "skyrl_stand_in", "NovaSky-AI/SkyRL", "a956457",
          (f"{SKYRL}off_policy_correction.py", f"{SKYRL}losses.py",
           "tests/backends/skyrl_train/utils/test_ppo_utils.py"),
          "skyrl/backends/skyrl_train/utils/ppo_utils.py"),
)  # fmt: skip


def suite_of(checkout: Path) -> Suite:
    """Returns the suite of a checkout. Raises ValueError if it is of none."""
    for suite in SUITES:
        if (checkout / suite.sign).exists():
            return suite
    known = ", ".join(f"{suite.repository}@{suite.commit}" for suite in SUITES)
    raise ValueError(f"{checkout} is no checkout of a project whose tests run here: {known}")


def outcome(suite: Suite, checkout: Path) -> Outcome:
    """Returns what became of the tests of a suite. Raises RuntimeError if they could not be run."""
    asked_for = filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))
    path = [*map(str, (STAND_INS, ROOT / "src")), *map(os.path.abspath, asked_for)]
    with tempfile.TemporaryDirectory() as folder:
        # An empty configuration: theirs may ask for plugins that are not there.
        configuration, report = Path(folder, "pytest.ini"), Path(folder, "report.xml")
        configuration.touch()
        options = ["-c", configuration, "--rootdir", ".", f"--junitxml={report}", "-p", suite.stand_in]
        options += ["-p", "no:cacheprovider", "-q", "--tb=short"]
        options += [] if suite.own_conftest else ["--noconftest"]
        done = subprocess.run(
            [sys.executable, "-m", "pytest", *map(str, options), *suite.tests],
            cwd=checkout,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(path), "PYTHONDONTWRITEBYTECODE": "1"},
            capture_output=True,
            text=True,
        )
        if done.returncode not in (0, 1) or not report.exists():
            said = (done.stdout + done.stderr).strip() or "it was killed"
            raise RuntimeError(f"the tests of {suite.name} could not be run: {said.splitlines()[-1]}")
        return read(report)


def read(report: Path) -> Outcome:
    """Returns the outcome of a report in JUnit's format."""
    found = Outcome()
    for case in ElementTree.parse(report).iter("testcase"):
        module = case.get("classname", "").rpartition("test_")[2]
        name = f"{module}::{case.get('name', '').removeprefix('test_')}"
        said = {child.tag: child.get("message", "").partition("\n")[0] for child in case}
        if problem := said.get("failure") or said.get("error"):
            found.failed[name] = problem
        elif "skipped" in said:
            found.not_here[name] = said["skipped"]
        else:
            found.passed.append(name)
    return found


def show(checkouts: Sequence[Path]) -> list[str]:
    """Runs the tests of checkouts and prints what became of them; returns the suites with a failed test, or
    without a passed one.
    """
    failed: list[str] = []
    lines: list[str] = []
    table = Table("tests of", "passed", "failed", "not here")
    for checkout in checkouts:
        suite = suite_of(checkout)
        try:
            found = outcome(suite, checkout)
        except RuntimeError as error:
            lines.append(str(error))
            failed.append(suite.name)
            continue
        table.add_row(suite.name, *(str(len(each)) for each in (found.passed, found.failed, found.not_here)))
        failed += [suite.name] if found.failed or not found.passed else []
        lines += [f"{suite.name}, failed: {name}: {said}" for name, said in found.failed.items()]
        lines += [f"{suite.name}, not here: {line}" for line in by_reason(found.not_here)]
    known = [suite_of(checkout) for checkout in checkouts]
    left_out = ", ".join(
        f"{each.name} ({each.repository}@{each.commit})" for each in SUITES if each not in known
    )
    if left_out:
        lines.append(f"others' tests not run, for want of --tests and a checkout from GitHub: {left_out}")
    if table.rows:
        Console(width=None if sys.stdout.isatty() else 160).print(table)
    print(*lines, sep="\n")
    return failed


def by_reason(not_here: Mapping[str, str]) -> list[str]:
    """Returns a line for each reason, with the tests that it holds for."""
    tests: dict[str, list[str]] = {}
    for name, reason in not_here.items():
        tests.setdefault(reason, []).append(name)
    return [f"{reason}: {', '.join(names)}" for reason, names in tests.items()]


def main() -> int:
    """Prints what became of the tests of checkouts; returns 1 if one failed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_checkouts(parser, "checkouts")
    return 1 if show(parser.parse_args().checkouts) else 0


def add_checkouts(parser: argparse.ArgumentParser, name: str) -> None:
    """Adds an argument that takes checkouts of projects whose tests run here."""

    def checkout(text: str) -> Path:
        try:
            suite_of(Path(text))
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None
        return Path(text)

    parser.add_argument(name, nargs="*", type=checkout, default=[], metavar="CHECKOUT")


if __name__ == "__main__":
    sys.exit(main())
