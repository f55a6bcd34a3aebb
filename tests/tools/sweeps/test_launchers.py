"""Launchers and jobs of a sweep, with jobs that only pretend to train."""

import os
import signal
import threading

import psutil
import pytest
from hydra.core.utils import JobReturn, JobStatus
from tests.tools.sweeps.pretended import PretendedRun, manifest, wait_until

from bapo_lightning.system.errors import ConfigError
from bapo_lightning.system.host import num_cores
from bapo_lightning.tools.sweeps import launchers
from bapo_lightning.tools.sweeps.job import STOPPED, JobFailed, log_file
from bapo_lightning.tools.sweeps.launchers import LOST, chosen_launcher, run_by_plugin, run_local

COMPLETED, FAILED = JobStatus.COMPLETED, JobStatus.FAILED


def test_a_run_that_fails_does_not_stop_the_others(tmp_path):
    wanted = {"a": 0, "b": 3, "c": 0}
    jobs = {name: PretendedRun(("0", str(code)), tmp_path / name) for name, code in wanted.items()}
    assert sorted(run_local(jobs, parallel_runs=1)) == sorted(wanted.items())
    assert f"threads {num_cores()}" in log_file(tmp_path / "b").read_text()


def test_runs_at_the_same_time_have_gpus_of_their_own(tmp_path, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1,2,3,4")
    jobs = {name: PretendedRun(("1", "0"), tmp_path / name) for name in "ab"}
    assert dict(run_local(jobs, gpus_per_run=2)) == {"a": 0, "b": 0}
    gpus = [log_file(tmp_path / name).read_text().split("gpus ")[1].strip() for name in "ab"]
    assert sorted(gpus) == ["0,1", "2,3"]


def test_cores_and_gpus_are_shared_out(monkeypatch):
    assert len(launchers.local_slots(99, None, 0)) == num_cores()
    assert len(launchers.local_slots(5, 2, 0)) == 2 and len(launchers.local_slots(1, 5, 0)) == 1
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5,6,7,8")
    assert launchers.visible_gpus() == ["4", "5", "6", "7", "8"]
    shares = [{"CUDA_VISIBLE_DEVICES": "4,5"}, {"CUDA_VISIBLE_DEVICES": "6,7"}]
    assert launchers.local_slots(9, None, 2) == shares and launchers.local_slots(9, 1, 2) == shares[:1]
    with pytest.raises(ConfigError, match="gpus_per_run=6, but 5 GPUs are visible here"):
        launchers.local_slots(9, None, 6)


@pytest.mark.parametrize(("overrides", "complaint"), [
    (["hydra/launcher=cloud"], "launcher=cloud is not a choice here; it takes local, ray, submitit"),
    (["hydra.launcher.gpus=1"], "gpus is not an option; hydra.launcher takes .*gpus_per_run"),
    (["hydra.launcher.parallel_runs=0"], "parallel_runs=0 must be a whole number of at least 1"),
    (["hydra/launcher=ray", "hydra.launcher.cpus_per_run=0"], "launcher.cpus_per_run=0 must be"),
])  # fmt: skip
def test_launchers_and_options_that_do_not_exist_are_reported(overrides, complaint):
    with pytest.raises(ConfigError, match=complaint):
        chosen_launcher(overrides)


def test_a_launcher_begins_as_many_runs_as_the_sweep_asks_for_unless_it_is_set_otherwise():
    for given, number in {"hydra.sweeper.parallel_runs=3": 3, "hydra.launcher.parallel_runs=4": 4}.items():
        launch, is_here = chosen_launcher([given])
        assert launch.keywords == {"parallel_runs": number, "gpus_per_run": 0} and is_here
    assert not chosen_launcher(["hydra/launcher=ray"])[1]


def test_ctrl_c_gives_up_what_has_not_begun_and_a_stopped_run_is_not_finished(tmp_path):
    long = {name: PretendedRun(("30", "0"), tmp_path / name) for name in "ab"}

    def interrupt():
        wait_until((tmp_path / "a" / "manifest.json").exists)
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(long["a"]._process_id, signal.SIGTERM)  # what a terminal does to the whole group

    threading.Thread(target=interrupt, daemon=True).start()
    assert dict(run_local(long, parallel_runs=1)) == {"b": STOPPED, "a": STOPPED}
    assert not (tmp_path / "b").exists()


def test_jobs_of_hydras_launchers_that_fail_do_not_stop_the_others(tmp_path):
    class Launcher:
        def launch(self, overrides, first):
            assert overrides == [["seed=0"]] * 3
            ends = (COMPLETED, None), (FAILED, JobFailed(3)), (FAILED, ValueError("it broke"))
            return [JobReturn(status=status, _return_value=value) for status, value in ends]

    jobs = {name: PretendedRun(("--config-dir=conf", "seed=0"), tmp_path / name) for name in "abc"}
    assert dict(run_by_plugin(Launcher(), jobs)) == {"a": 0, "b": 3, "c": LOST}


def test_a_launcher_of_hydras_that_breaks_leaves_what_has_finished(tmp_path, capsys):
    class Launcher:
        def launch(self, overrides, first):
            jobs["a"]()
            raise RuntimeError("job 17\n is gone")

    jobs = {name: PretendedRun(("0", "0"), tmp_path / name) for name in "ab"}
    assert dict(run_by_plugin(Launcher(), jobs)) == {"a": 0, "b": LOST}
    assert capsys.readouterr().err == "error: Launcher: job 17 is gone\n"


@pytest.mark.slow
def test_a_job_whose_time_is_up_saves_itself_and_is_submitted_again(tmp_path):
    from submitit import LocalExecutor
    from submitit.core.utils import pickle_load

    executor = LocalExecutor(tmp_path / "submitit")
    executor.update_parameters(timeout_min=5)
    job = executor.submit(PretendedRun(("30", "0"), tmp_path / "run"))
    wait_until((tmp_path / "run" / "manifest.json").exists)
    assert manifest(tmp_path / "run")["ignores"]  # the notice, which SLURM sends to the run as well
    (task,) = psutil.Process(int(job.job_id)).children()
    task.send_signal(signal.SIGUSR2)
    wait_until(lambda: manifest(tmp_path / "run")["status"] == "interrupted")
    wait_until(lambda: job.get_info()["jobState"] != "RUNNING")
    again = pickle_load(job.paths.submitted_pickle).function
    assert (again.overrides, again.folder) == (("30", "0"), tmp_path / "run")
