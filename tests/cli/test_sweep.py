"""Sweeps as a user runs them, on a few updates: `make sweep` and `make train ARGS=-m` are one."""

import json
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from tests.commands import Command, run_command, wait_until
from tests.report.synthetic_runs import write_run

from bapo_lightning.runs.command import overrides_first
from bapo_lightning.system.errors import ConfigError
from bapo_lightning.tools.commands import multirun
from bapo_lightning.tools.commands.multirun import with_sweeps
from bapo_lightning.tools.sweeps.job import STOPPED
from bapo_lightning.tools.sweeps.plan import SweepPlan
from bapo_lightning.tools.sweeps.run import print_failures

SWEEP = "bapo_lightning.cli.sweep"
SMALL = ["experiment=additions", "debug=fast", "regime=on_policy"]


@pytest.fixture(scope="module")
def swept(tmp_path_factory):
    """Options of a sweep of two runs of which one fails, and what came of it."""
    alarm = ["above=0.03,4.0", "patience=1", "action=stop"]
    overrides = ["algorithm=bapo", *(f"callbacks.alarms.entropy.{option}" for option in alarm)]
    root = tmp_path_factory.mktemp("swept")
    arguments = ["sweep=smoke", *SMALL, f"output_root={root}", *overrides, "launcher.parallel_runs=1"]
    return (root, overrides, run_command(SWEEP, *arguments, "folder=mine", forks=True))


def test_a_sweep_goes_on_after_a_failure_and_lists_it(swept):
    root, _, done = swept
    (folder,) = root.iterdir()
    assert done.returncode == 1, done.stdout + done.stderr
    assert "failed: algorithm_bapo-above_0.03, see " in done.stderr
    assert "[2/2] finished  algorithm=bapo callbacks.alarms.entropy.above=4.0" in done.stdout
    assert "1 of 2 runs" in done.stdout and f'make compare RUNS="{folder}"' in done.stdout
    assert {"compare.html", "compare.csv"} <= {path.name for path in folder.iterdir()}
    recorded = json.loads((folder / "sweep.json").read_text())["runs"]
    codes = {run: entry["exit_code"] for run, entry in recorded.items()}
    assert codes == {"algorithm_bapo-above_0.03": 1, "algorithm_bapo-above_4.0": 0}


@pytest.mark.slow
def test_a_sweep_that_goes_on_skips_what_is_finished_whoever_launches_it(swept):
    root, overrides, _ = swept
    launcher = ["hydra/launcher=basic", "hydra.sweeper.folder=mine"]
    arguments = ["-m", "sweep=smoke", *SMALL, f"output_root={root}", *overrides, *launcher]
    again = run_command("bapo_lightning.cli.train", *arguments, forks=True)
    assert f"2 runs in {root / 'mine'}: 1 finished before" in again.stdout
    assert (again.returncode, again.stderr) == (0, ""), "the alarm that failed it is over"
    assert "[1/1] finished" in again.stdout


@pytest.mark.parametrize(("arguments", "complaint"), [
    (["sweep=smoke", *SMALL, "scale.group_size=1"], "scale.group_size=1 is refused by the advantages"),
    (["sweep=nowhere"], "sweep=nowhere is not a choice; it takes additions, bapo_target"),
    ([], "nothing is varied; write sweep=NAME"),
])  # fmt: skip
def test_a_sweep_that_cannot_work_starts_nothing(tmp_path, arguments, complaint):
    done = run_command(SWEEP, *arguments, f"output_root={tmp_path}", cwd=tmp_path)
    assert (done.returncode, done.stderr.count(complaint), list(tmp_path.iterdir())) == (2, 1, [])


@pytest.mark.slow
def test_a_run_that_is_stopped_goes_on_saves_and_ends_when_its_sweep_is_killed(tmp_path):
    options = ["algorithm=bapo", "debug=fast", "experiment=additions", "scale.num_rollout_batches=500"]
    process = Command(SWEEP, ["sweep=smoke", *options, f"output_root={tmp_path}"])
    wait_until(lambda: any(tmp_path.glob("*/*/metrics.jsonl")), process)
    for run in psutil.Process(process.pid).children(recursive=True):
        run.suspend()
    process.kill()
    process.communicate()
    (manifest,) = tmp_path.glob("*/*/manifest.json")
    wait_until(lambda: json.loads(manifest.read_text())["status"] == "interrupted", process)


@pytest.mark.slow
@pytest.mark.drill
def test_a_launcher_of_hydra_runs_the_jobs_with_files_of_ones_own(tmp_path):
    (tmp_path / "conf" / "sweep").mkdir(parents=True)
    text = "# @package hydra.sweeper\ncases: [{seed: 1}, {seed: 2, algorithm.positive_share_target: 0.4}]\n"
    (tmp_path / "conf" / "sweep" / "mine.yaml").write_text(text)
    options = [f"--config-dir={tmp_path / 'conf'}", "sweep=mine", *SMALL, "launcher=submitit_local"]
    command = [sys.executable, "-m", "bapo_lightning.cli.train", *options, f"output_root={tmp_path}"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 of 2 runs" in done.stdout
    (folder,) = tmp_path.glob("sweep-mine-*")
    manifests = folder.glob("*/manifest.json")
    statuses = {path.parent.name: json.loads(path.read_text())["status"] for path in manifests}
    assert statuses == dict.fromkeys(["seed_1", "seed_2-positive_share_target_0.4"], "finished")


def test_an_interrupted_sweep_tells_what_is_left_to_do(tmp_path, capsys):
    plan = SweepPlan("smoke", tmp_path, {name: (name,) for name in "abcde"}, ())
    for name in "abc":
        (tmp_path / name).mkdir()
    (tmp_path / "c.log").write_text("loading\nit broke\n")
    assert print_failures(plan, {"b": STOPPED, "c": 1, "d": STOPPED, "e": STOPPED}) == 1
    assert capsys.readouterr().err.splitlines() == [
        f"failed: c, see {tmp_path / 'c.log'}: it broke",
        "interrupted: 1 finished, 1 failed, 1 half done, 2 not started; the same command continues with them",
    ]
    assert print_failures(plan, {"e": STOPPED}) == STOPPED


def test_a_folder_may_begin_as_an_option_does(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for algorithm in ("grpo", "bapo"):
        write_run(Path("-1", algorithm), [{"step": n, "train/reward": 0.5} for n in range(4)], algorithm)
    multirun.compare(SweepPlan("smoke", Path("-1"), {"grpo": (), "bapo": ()}, (), "bapo"))
    assert "2 of 2 runs" in capsys.readouterr().out


def test_the_table_tells_of_earlier_runs(tmp_path, capsys):
    for algorithm in ("grpo", "bapo", "dapo"):
        rows = [{"step": step, "train/reward": 0.5} for step in range(4)]
        write_run(tmp_path / f"algorithm_{algorithm}", rows, algorithm)
    multirun.compare(SweepPlan("smoke", tmp_path, {"algorithm_grpo": (), "algorithm_bapo": ()}, ()))
    output = capsys.readouterr().out
    assert "3 of 3 runs" in output and "  runs of earlier calls in this folder: 1\n" in output


def test_short_options_of_sweeps_are_hydras():
    assert with_sweeps(["seed=0"]) == ["seed=0"]
    with pytest.raises(ConfigError, match="hydra/sweeper=optuna needs a number from each run"):
        with_sweeps(["hydra/sweeper=optuna", "-m"])
    chosen = ["hydra/sweeper=runs", "hydra/launcher=local"]
    assert with_sweeps(["seed=0,1", "-m"]) == ["seed=0,1", "-m", *chosen]
    assert with_sweeps(["sweep=x", "folder=y"]) == ["sweep=x", "hydra.sweeper.folder=y", *chosen, "-m"]
    launcher = with_sweeps(["-m", "launcher=ray", "launcher.cpus_per_run=2"])
    assert launcher == ["-m", "hydra/launcher=ray", "hydra.launcher.cpus_per_run=2", chosen[0]]


def test_overrides_come_before_the_options_next_to_which_hydra_reads_none():
    given = ["experiment=quickstart", "-m", "algorithm=grpo,bapo", "~model.lora", "--cfg", "job", "--resolve"]
    assert overrides_first(given) == [*given[::2][:2], "~model.lora", "-m", "--cfg", "job", "--resolve"]
