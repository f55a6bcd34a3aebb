"""Sweeps as a user runs them, on a few updates."""

import json
import subprocess
import sys

import pytest
from tests.commands import run_command


def sweep(tmp_path, *overrides):
    options = ["sweep=smoke", "experiment=additions", "debug=fast", f"output_root={tmp_path}", *overrides]
    return run_command("bapo_lightning.cli.sweep", *options)


@pytest.fixture(scope="module")
def swept(tmp_path_factory):
    """Options of a sweep of two runs of which one fails, and what came of it."""
    alarm = [
        "callbacks.alarms.entropy.above=0.03,4.0",
        "callbacks.alarms.entropy.patience=1",
        "callbacks.alarms.entropy.action=stop",
    ]
    overrides = ["regime=on_policy", "algorithm=bapo", *alarm, "launcher.parallel_runs=1"]
    root = tmp_path_factory.mktemp("swept")
    return root, overrides, sweep(root, *overrides)


def test_a_sweep_goes_on_after_a_failure_and_lists_it(swept):
    root, _, done = swept
    (folder,) = root.iterdir()
    assert done.returncode == 1, done.stdout + done.stderr
    assert "failed: algorithm_bapo-above_0.03, see " in done.stderr
    assert "[2/2] finished  algorithm=bapo callbacks.alarms.entropy.above=4.0" in done.stdout
    assert (folder / "study.csv").is_file()
    recorded = json.loads((folder / "sweep.json").read_text())["runs"]
    assert {run: entry["exit_code"] for run, entry in recorded.items()} == {
        "algorithm_bapo-above_0.03": 1,
        "algorithm_bapo-above_4.0": 0,
    }


@pytest.mark.slow
def test_a_sweep_that_goes_on_skips_what_is_finished(swept):
    root, overrides, _ = swept
    again = sweep(root, *overrides)
    assert "2 runs in" in again.stdout and "1 finished before" in again.stdout


def test_a_sweep_that_cannot_work_starts_nothing(tmp_path):
    done = sweep(tmp_path, "scale.group_size=1")
    assert (done.returncode, list(tmp_path.iterdir())) == (2, [])
    assert done.stderr.count("scale.group_size=1 with algorithm.advantages.scale=std") == 1


@pytest.mark.slow
def test_hydras_joblib_launcher_gives_jobs_that_start_together_folders_of_their_own(tmp_path):
    launcher = ["-m", "hydra/launcher=joblib", "hydra.launcher.n_jobs=2"]
    overrides = [
        "debug=fast",
        "regime=on_policy",
        "algorithm.positive_share_target=0.4,0.5",
        f"output_root={tmp_path}",
    ]
    # A real process: loky, which starts the jobs, ends its workers by what `multiprocessing` runs at exit.
    command = [sys.executable, "-m", "bapo_lightning.cli.train", *launcher, *overrides]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    runs = sorted((tmp_path / "quickstart").iterdir())
    assert [run.name.rsplit("-", 1)[1] for run in runs] == ["0", "1"]
    assert [json.loads((run / "manifest.json").read_text())["status"] for run in runs] == [
        "finished",
        "finished",
    ]
