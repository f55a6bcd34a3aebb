"""Sweeps as a user runs them, on a few updates."""

import json
import subprocess
import sys

import pytest
from tests.commands import Command, run_command, wait_until
from tests.report.synthetic_runs import write_run

from bapo_lightning.cli import sweep as command
from bapo_lightning.cli.command import overrides_first
from bapo_lightning.cli.sweep import print_failures
from bapo_lightning.run_folder.find import find_runs
from bapo_lightning.runs.sweeps.job import STOPPED
from bapo_lightning.runs.sweeps.plan import Plan


def sweep(tmp_path, *overrides):
    options = ["sweep=smoke", "experiment=additions", "debug=fast", f"output_root={tmp_path}", *overrides]
    return run_command("bapo_lightning.cli.sweep", *options, forks=True)


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
    assert (folder / "compare.csv").is_file()
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
def test_a_run_saves_and_ends_when_its_sweep_is_killed(tmp_path):
    options = ["algorithm=bapo", "debug=fast", "experiment=additions", "scale.num_rollout_batches=500"]
    process = Command("bapo_lightning.cli.sweep", ["sweep=smoke", *options, f"output_root={tmp_path}"])
    wait_until(lambda: any(tmp_path.glob("*/*/metrics.jsonl")), process)
    process.kill()
    process.communicate()
    (manifest,) = tmp_path.glob("*/*/manifest.json")
    wait_until(lambda: json.loads(manifest.read_text())["status"] == "interrupted", process)


@pytest.mark.slow
def test_hydras_joblib_launcher_gives_jobs_that_start_together_folders_of_their_own(tmp_path):
    launcher = ["experiment=quickstart", "-m", "hydra/launcher=joblib", "hydra.launcher.n_jobs=2"]  # as make
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
    (folder,) = (tmp_path / "multirun").iterdir()
    assert {"compare.html", "sweep.json"} <= {path.name for path in folder.iterdir()}
    assert "2 of 2 runs" in done.stdout and f'make compare RUNS="{folder}"' in done.stdout
    assert set(find_runs([str(folder)])) == {folder / ".." / ".." / "quickstart" / run.name for run in runs}


def test_an_interrupted_sweep_tells_what_is_left_to_do(tmp_path, capsys):
    plan = Plan("smoke", tmp_path, {name: (name,) for name in "abcde"}, (), {}, None, None)
    for name in "abc":
        (tmp_path / name).mkdir()
    (tmp_path / "c.log").write_text("loading\nit broke\n")
    assert print_failures(plan, {"b": STOPPED, "c": 1, "d": STOPPED, "e": STOPPED}) == 1
    assert capsys.readouterr().err.splitlines() == [
        f"failed: c, see {tmp_path / 'c.log'}: it broke",
        "interrupted: 1 finished, 1 failed, 1 half done, 2 not begun; the same command goes on with them",
    ]
    assert print_failures(plan, {"e": STOPPED}) == STOPPED


def test_the_table_tells_of_earlier_runs_and_is_left_out_where_nothing_finished(
    tmp_path, capsys, monkeypatch
):
    arguments = ["sweep=smoke", "folder=mine", f"output_root={tmp_path}"]
    rows = [{"step": step, "train/reward": 0.5} for step in range(4)]
    for algorithm in ("grpo", "bapo", "dapo"):
        write_run(tmp_path / "mine" / f"algorithm_{algorithm}", rows, algorithm)
    monkeypatch.setattr(command, "run_plan", lambda plan: {"algorithm_bapo": STOPPED})
    assert command.main(arguments) == STOPPED
    output = capsys.readouterr().out
    assert "3 of 3 runs" in output and "  runs of earlier calls in this folder: 1\n" in output
    monkeypatch.setattr(command, "run_plan", lambda plan: dict.fromkeys(plan.jobs, STOPPED))
    assert command.main(arguments) == STOPPED
    assert capsys.readouterr().out == ""


def test_overrides_come_before_the_options_beside_which_hydra_reads_none():
    given = ["experiment=quickstart", "-m", "algorithm=grpo,bapo", "~model.lora", "--cfg", "job", "--resolve"]
    assert overrides_first(given) == [*given[::2][:2], "~model.lora", "-m", "--cfg", "job", "--resolve"]
