"""Tests of other projects run against our code, here those of a small project that the test makes."""

import subprocess
import sys
from dataclasses import replace

import pytest
from tests.zoo import suites
from tests.zoo.suites import SUITES, Outcome

CS336, _, _, SKYRL = SUITES
THEIRS = """
import torch
from .adapters import (
    get_packed_sft_dataset,
    run_compute_grpo_clip_loss as clip_loss,
    run_masked_mean as masked_mean,
)

ONE = torch.tensor([[1.0]])

def test_a_ratio_is_clipped(bound):
    loss, _ = clip_loss(ONE, torch.log(2 * ONE), 0 * ONE, bound)
    assert loss.item() == -1 - bound

def test_that_expects_something_else():
    assert masked_mean(ONE, ONE.bool()) == 2, "it is 1"

def test_of_what_there_is_not():
    get_packed_sft_dataset(None, "path", 8, False)
"""
OFF_POLICY = """
import torch
from skyrl.backends.skyrl_train.utils.off_policy_correction_utils import compute_tis_ratio
from skyrl.backends.skyrl_train.utils.ppo_utils import PolicyLossRegistry, register_policy_loss
from skyrl.train.config import OffPolicyCorrectionConfig

def test_a_weight_is_capped():
    config = OffPolicyCorrectionConfig(token_tis_ratio_clip_high=2.0)
    ones, logp = torch.ones(1, 2), torch.tensor([[-1.0, -1.0]])
    weights, metrics = compute_tis_ratio(logp, logp - torch.tensor([[0.0, 1.0]]), ones, "token", config)
    assert weights.tolist() == [[1.0, 2.0]] and metrics == {"tis_token_clip_high_ratio": 0.5}

def test_a_loss_by_name():
    one = torch.ones(1, 1)
    loss, _ = PolicyLossRegistry.get("regular")(torch.log(2 * one), 0 * one, one, OffPolicyCorrectionConfig())
    assert abs(loss + 1.2) < 1e-6

def test_a_registry():
    register_policy_loss("mine")(lambda: None)
"""


def project(folder, suite, *texts):
    """Makes a checkout of a suite with these files of tests."""
    for path, text in {**dict(zip(suite.tests, texts, strict=True)), suite.sign: ""}.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)
    return folder


@pytest.fixture
def theirs(tmp_path):
    """A checkout of CS336's assignment with three tests, and adapters that nobody has filled in."""
    made = project(tmp_path / "theirs", CS336, THEIRS)
    for name in ("__init__", "adapters"):
        (made / "tests" / f"{name}.py").touch()
    (made / "tests" / "conftest.py").write_text(
        "import pytest\n@pytest.fixture\ndef bound():\n    return 0.5\n"
    )
    return made


def files(folder):
    return sorted(path.relative_to(folder) for path in folder.rglob("*"))


def test_their_tests_judge_our_code_and_leave_their_folder_as_it_was(theirs, capsys):
    before = files(theirs)
    assert suites.show([theirs]) == ["CS336 2025"], "a test of theirs failed"
    assert files(theirs) == before
    shown = capsys.readouterr().out.splitlines()
    cells = [[cell.strip() for cell in line.split("│")[1:-1]] for line in shown]
    assert ["CS336 2025", "1", "1", "1"] in cells
    assert [line for line in shown if "2025, " in line] == [
        "CS336 2025, failed: grpo::that_expects_something_else: AssertionError: it is 1",
        "CS336 2025, not here: supervised and preference training are not here: grpo::of_what_there_is_not",
    ]
    assert "CS336 2026 (stanford-cs336/assignment5-alignment@" in shown[-1] and "2025 (" not in shown[-1]


def test_modules_that_a_project_has_are_replaced_by_ours(tmp_path):
    suite = replace(SKYRL, tests=SKYRL.tests[:1])
    made = project(tmp_path, suite, OFF_POLICY)
    utils = (made / suite.sign).with_name("torch_utils.py")
    utils.write_text("@undefined\ndef masked_mean(tensor: Unknown, mask):\n    return tensor.mean()\n")
    found = suites.outcome(suite, made)
    assert found.passed == [
        "off_policy_correction::a_weight_is_capped",
        "off_policy_correction::a_loss_by_name",
    ]
    assert found.not_here == {"off_policy_correction::a_registry": "SkyRL's registries of functions"}


def test_tests_that_cannot_be_run_are_reported_in_one_line(tmp_path, capsys):
    made = project(tmp_path, CS336, "")
    (made / CS336.tests[0]).unlink()
    assert suites.show([made]) == ["CS336 2025"]
    assert "the tests of CS336 2025 could not be run: " in capsys.readouterr().out


def test_a_suite_without_a_passed_test_fails(theirs, monkeypatch):
    monkeypatch.setattr(suites, "outcome", lambda *_: Outcome(not_here={"one": "no"}))
    assert suites.show([theirs]) == ["CS336 2025"]
    monkeypatch.setattr(suites, "outcome", lambda *_: Outcome(["two"], {}, {"one": "no"}))
    assert suites.show([theirs]) == []


def test_without_a_checkout_one_line_says_what_is_left_out(capsys):
    assert suites.show([]) == []
    (line,) = capsys.readouterr().out.splitlines()
    assert all(f"{suite.repository}@{suite.commit}" in line for suite in SUITES)


def test_a_folder_of_another_project_is_refused(tmp_path):
    command = [sys.executable, "-m", "tests.zoo.suites", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=suites.ROOT)
    assert done.returncode == 2 and f"{tmp_path} is no checkout of a project" in done.stderr


def test_every_stand_in_is_that_of_a_suite():
    stand_ins = {path.stem for path in suites.STAND_INS.glob("*.py")} - {"__init__", "ours"}
    assert stand_ins == {suite.stand_in for suite in SUITES}
