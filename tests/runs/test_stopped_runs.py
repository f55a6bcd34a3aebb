"""A run that a signal stops ends politely at any moment: exit code, status, checkpoint, one line."""

import os
import signal

import pytest
from tests.commands import run_command, said
from tests.runs.written import manifest, rows

from bapo_lightning.system.run_folder.checkpoint import list_checkpoints, verify

TRAIN = "bapo_lightning.cli.train"
SETTINGS = [
    "experiment=additions", "debug=fast", "scale.num_rollout_batches=3", "callbacks.checkpoint.every=50",
]  # fmt: skip
BEFORE = (
    "made", "setup", "on_fit_start", "load_weights", "generate", "on_train_start", "on_train_batch_start",
)  # fmt: skip
WITHIN = ("on_before_optimizer_step", "on_train_batch_end")


def stopped(folder, moment, number, *options):
    own = f"{{_target_: tests.runs.own_classes.StopAt, moment: {moment}, number: {int(number)}}}"
    return run_command(TRAIN, *SETTINGS, f"+callbacks.own={own}", f"run_folder={folder}", *options)


@pytest.mark.parametrize("number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.slow)])
@pytest.mark.parametrize("moment", BEFORE)
def test_a_signal_before_the_first_update_ends_the_run_at_once(moment, number, tmp_path):
    done = stopped(tmp_path / "run", moment, number)
    assert done.returncode == 128 + number, done.stderr
    assert said(done.stderr) == ["interrupted" if number == signal.SIGINT else "stopped by SIGTERM"]
    assert manifest(tmp_path / "run")["status"] == "interrupted" and "error" not in manifest(tmp_path / "run")
    assert not list_checkpoints(tmp_path / "run/checkpoints")


@pytest.mark.parametrize("moment", WITHIN)
def test_a_signal_in_the_first_update_or_later_ends_the_run_after_the_update_which_is_saved(moment, tmp_path):
    folder = tmp_path / "run"
    done = stopped(folder, moment, signal.SIGTERM)
    assert done.returncode == 143 and said(done.stderr) == [], done.stderr
    assert "SIGTERM: stopping after this update" in done.stdout
    assert manifest(folder)["status"] == "interrupted"
    assert verify(list_checkpoints(folder / "checkpoints")[0]).update == len(rows(folder)) == 1


@pytest.mark.parametrize("moment", ["on_train_end", "teardown"])
def test_a_signal_after_the_last_update_loses_nothing(moment, tmp_path):
    folder = tmp_path / "run"
    assert stopped(folder, moment, signal.SIGTERM).returncode == 143
    assert verify(list_checkpoints(folder / "checkpoints")[0]).update == len(rows(folder)) == 24
    again = run_command(TRAIN, *SETTINGS, f"run_folder={folder}", "resume=auto")
    assert manifest(folder)["status"] == "finished", again.stderr


def test_a_killed_run_that_is_resumed_and_stopped_before_it_trains_is_not_said_to_be_running(tmp_path):
    folder = tmp_path / "run"
    stopped(folder, "on_train_batch_end", signal.SIGKILL)
    assert manifest(folder)["status"] == "running"
    assert stopped(folder, "made", signal.SIGTERM, "resume=auto").returncode == 143
    assert manifest(folder)["status"] == "interrupted"


@pytest.mark.parametrize("variable", ["RANK", "LOCAL_RANK", "SLURM_PROCID", "JSM_NAMESPACE_RANK"])
def test_a_rank_that_is_left_over_costs_neither_records_nor_messages(variable, tmp_path):
    environment = {**os.environ, variable: "1", "SLURM_NTASKS": "2", "SLURM_JOB_ID": "12345"}
    few = "scale.num_rollout_batches=1", "logger=csv"
    done = run_command(TRAIN, *SETTINGS, *few, f"run_folder={tmp_path / 'run'}", env=environment)
    assert done.returncode == 0 and len(rows(tmp_path / "run")) == 8, done.stderr
    assert (tmp_path / "run/csv/metrics.csv").is_file()
    done = run_command(TRAIN, *SETTINGS, "scale.group_size=1", env=environment)
    assert done.returncode == 1 and "scale.group_size=1" in done.stderr
