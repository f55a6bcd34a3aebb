"""Launchers and jobs of a sweep, with jobs that only pretend to train; submitit with its executors for one
machine.
"""

import os
import signal
import threading

import psutil
import pytest
from tests.runs.sweeps.pretended import PretendedRun, ignore, manifest, wait_until

from bapo_lightning.errors import ConfigError
from bapo_lightning.runs.sweeps.job import STOPPED, log_file
from bapo_lightning.runs.sweeps.launchers import (
    LOST,
    local_slots,
    num_cores,
    run_local,
    run_submitit,
    visible_gpus,
)

LOCAL = {"parallel_runs": None, "gpus_per_run": 0}


def jobs(tmp_path, codes):
    return {name: PretendedRun(("0", str(code)), tmp_path / name, 3) for name, code in codes.items()}


def submitit_options(cluster, **parameters):
    return {
        "cluster": cluster,
        "parallel_runs": None,
        "parameters": {"timeout_min": 5, "slurm_partition": None, **parameters},
    }


def test_a_run_that_fails_does_not_stop_the_others(tmp_path):
    told = []
    codes = run_local(
        jobs(tmp_path, {"a": 0, "b": 3, "c": 0}), [{}], lambda name, code: told.append((name, code))
    )
    assert codes == {"a": 0, "b": 3, "c": 0}
    assert sorted(told) == [("a", 0), ("b", 3), ("c", 0)]
    assert "threads 3" in log_file(tmp_path / "b").read_text()


def test_runs_at_the_same_time_have_gpus_of_their_own(tmp_path):
    slots = [{"CUDA_VISIBLE_DEVICES": "0,1"}, {"CUDA_VISIBLE_DEVICES": "2,3"}]
    together = {name: PretendedRun(("1", "0"), tmp_path / name) for name in "ab"}
    assert run_local(together, slots, ignore) == {"a": 0, "b": 0}
    assert sorted(log_file(tmp_path / name).read_text().split("gpus ")[1].strip() for name in "ab") == [
        "0,1",
        "2,3",
    ]


def test_cores_and_gpus_are_shared_out(monkeypatch):
    assert len(local_slots(LOCAL, None)) == num_cores()
    assert len(local_slots(LOCAL, 2)) == 2
    assert len(local_slots({**LOCAL, "parallel_runs": 5}, 2)) == 5
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5,6,7,8")
    assert visible_gpus() == ["4", "5", "6", "7", "8"]
    shares = [{"CUDA_VISIBLE_DEVICES": "4,5"}, {"CUDA_VISIBLE_DEVICES": "6,7"}]
    assert local_slots({**LOCAL, "gpus_per_run": 2}, None) == shares
    assert local_slots({"parallel_runs": 1, "gpus_per_run": 2}, None) == shares[:1]


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({**LOCAL, "parallel_runs": 0}, "parallel_runs=0 must be a whole number of at least 1"),
        ({**LOCAL, "gpus_per_run": 3}, "gpus_per_run=3, but 2 GPUs are visible here"),
    ],
)
def test_what_a_machine_does_not_have_is_refused(monkeypatch, options, complaint):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    with pytest.raises(ConfigError, match=complaint):
        local_slots(options, None)


def test_ctrl_c_gives_up_what_has_not_begun_and_a_stopped_run_is_not_finished(tmp_path):
    long = {name: PretendedRun(("30", "0"), tmp_path / name) for name in "ab"}

    def interrupt():
        wait_until((tmp_path / "a" / "manifest.json").exists)
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(long["a"]._process_id, signal.SIGTERM)  # what a terminal does to the whole group

    threading.Thread(target=interrupt, daemon=True).start()
    assert run_local(long, [{}], ignore) == {"b": STOPPED, "a": STOPPED}
    assert not (tmp_path / "b").exists()


@pytest.mark.parametrize("cluster", ["local", "debug"])
def test_submitit_runs_the_jobs_and_returns_their_exit_codes(tmp_path, cluster):
    codes = run_submitit(
        jobs(tmp_path, {"a": 0, "b": 3}), tmp_path / "submitit", submitit_options(cluster), ignore
    )
    assert codes == {"a": 0, "b": 3}
    assert manifest(tmp_path / "a") == {"status": "finished", "ignores": True}


@pytest.mark.slow
def test_a_job_whose_time_is_up_saves_itself_and_is_submitted_again(tmp_path):
    from submitit import LocalExecutor
    from submitit.core.utils import pickle_load

    executor = LocalExecutor(tmp_path / "submitit")
    executor.update_parameters(timeout_min=5)
    job = executor.submit(PretendedRun(("30", "0"), tmp_path / "run"))
    wait_until((tmp_path / "run" / "manifest.json").exists)
    (task,) = psutil.Process(int(job.job_id)).children()
    task.send_signal(signal.SIGUSR2)
    wait_until(lambda: manifest(tmp_path / "run")["status"] == "interrupted")
    wait_until(lambda: job.get_info()["jobState"] != "RUNNING")
    again = pickle_load(job.paths.submitted_pickle).function
    assert (again.overrides, again.folder) == (("30", "0"), tmp_path / "run")


class UnknownThere(PretendedRun):
    """Of a module that the job cannot import."""


def test_a_job_that_its_cluster_loses_says_why_in_its_log(tmp_path):
    unpicklable_there = {"a": UnknownThere(("0", "0"), tmp_path / "a")}
    assert run_submitit(unpicklable_there, tmp_path / "submitit", submitit_options("local"), ignore) == {
        "a": LOST
    }
    assert "the cluster ended the job without a result" in log_file(tmp_path / "a").read_text()


def test_a_parameter_that_submitit_does_not_know_is_told(tmp_path):
    with pytest.raises(ConfigError, match=r"launcher=submitit: .*colour"):
        run_submitit({}, tmp_path, submitit_options("local", colour="red"), ignore)
