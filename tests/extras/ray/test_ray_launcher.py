"""Runs of a sweep on nodes that come and go, with jobs that only pretend to train, and real ones."""

import os
import signal
import threading
import time
from pathlib import Path

import psutil
import pytest
from run_comparison import same, without_times
from tests.commands import run_command
from tests.extras.ray.clusters import processes
from tests.tools.sweeps.pretended import PretendedRun, manifest, wait_until

from bapo_lightning.extras.ray.launcher import RayLauncher, is_taken
from bapo_lightning.system.errors import EngineError
from bapo_lightning.system.run_folder.record import read_run
from bapo_lightning.tools.sweeps.job import STOPPED, log_file

pytestmark = pytest.mark.slow


def launcher(nodes, **changes):
    own = {"parallel_runs": None, "cpus_per_run": 1, "gpus_per_run": 0, "max_retries": 3}
    return RayLauncher(nodes.address, **{**own, **changes})


def test_a_run_that_fails_does_not_stop_the_others(nodes, tmp_path):
    wanted = {"a": 0, "b": 3, "c": 0}
    jobs = {name: PretendedRun(("0", str(code)), tmp_path / name) for name, code in wanted.items()}
    assert sorted(launcher(nodes, parallel_runs=2)(jobs)) == sorted(wanted.items())
    assert "threads 1" in log_file(tmp_path / "b").read_text()


@pytest.mark.drill
def test_a_run_whose_node_is_lost_goes_on_on_another_one(nodes, tmp_path):
    with nodes.one_more(num_gpus=1) as one, nodes.one_more(num_gpus=1) as another:

        def lose():
            wait_until((tmp_path / "a" / "manifest.json").exists)
            folder = str(tmp_path / "a")
            found = {node: [process.cmdline() for process in processes(node)] for node in (one, another)}
            (node,) = (node for node, lines in found.items() if any(folder in line for line in lines))
            nodes.remove(node)

        thread = threading.Thread(target=lose)
        thread.start()
        job = PretendedRun(("40", "0"), tmp_path / "a")
        assert dict(launcher(nodes, gpus_per_run=1)({"a": job})) == {"a": 0}
        thread.join()
    assert manifest(tmp_path / "a")["status"] == "finished"
    assert log_file(tmp_path / "a").read_text().count("threads") == 2


def test_a_run_that_outlives_its_worker_saves_itself_before_it_goes_on(nodes, tmp_path):
    def lose():
        wait_until((tmp_path / "a" / "manifest.json").exists)
        found = psutil.process_iter(["cmdline"])
        (run,) = (each for each in found if str(tmp_path / "a") in (each.info["cmdline"] or ()))
        run.parent().kill()

    thread = threading.Thread(target=lose)
    thread.start()
    job = PretendedRun(("40", "0", "4"), tmp_path / "a")
    assert dict(launcher(nodes)({"a": job})) == {"a": 0}
    thread.join()
    assert manifest(tmp_path / "a")["status"] == "finished"
    assert "is in use by" not in log_file(tmp_path / "a").read_text()


def test_a_run_that_no_node_has_room_for_is_refused(nodes, tmp_path):
    with pytest.raises(EngineError, match="has room for a run of 9 CPUs and 0 GPUs"):
        next(launcher(nodes, cpus_per_run=9)({"a": PretendedRun(("0", "0"), tmp_path / "a")}))


def test_a_cluster_that_is_busy_is_said_to_be(nodes, tmp_path, capsys):
    import ray

    from bapo_lightning.extras.ray.joining import join, leave

    class Occupant:  # here, where no node has to import it
        def is_there(self):
            return True

    join(nodes.address, 0, "launcher.address")
    try:
        others = [ray.remote(num_cpus=2)(Occupant).remote() for _ in range(3)]
        ray.get([other.is_there.remote() for other in others])
        wait_until(lambda: is_taken(1, 0))  # nodes report what is free from time to time
        threading.Timer(2, ray.kill, (others[0],)).start()
        job = PretendedRun(("0", "0"), tmp_path / "a")
        assert dict(launcher(nodes)({"a": job})) == {"a": 0}
    finally:
        leave()
    assert "the Ray cluster is busy with other work; runs of 1 CPUs" in capsys.readouterr().err


def test_ctrl_c_lets_runs_save_themselves_and_gives_up_the_others(nodes, tmp_path):
    def interrupt():
        wait_until((tmp_path / "a" / "manifest.json").exists)
        time.sleep(0.5)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt, daemon=True).start()
    jobs = {name: PretendedRun(("60", "0"), tmp_path / name) for name in "ab"}
    assert dict(launcher(nodes, parallel_runs=1)(jobs)) == {"a": STOPPED}
    assert manifest(tmp_path / "a")["status"] == "interrupted" and not (tmp_path / "b").exists()


@pytest.mark.drill
def test_a_sweep_on_nodes_has_the_results_of_one_on_this_machine(nodes, tmp_path):
    common = ["sweep=smoke", "experiment=additions", "debug=fast", "regime=on_policy", "cpu_threads=1"]
    for name, launcher in {"here": ["local"], "there": ["ray", f"launcher.address={nodes.address}"]}.items():
        first, *rest = launcher
        own = (f"output_root={tmp_path / name}", f"launcher={first}", *rest)
        done = run_command("bapo_lightning.cli.sweep", *common, *own)
        assert done.returncode == 0, done.stdout + done.stderr
    here, there = (sorted(Path(tmp_path, name).glob("*/*/metrics.jsonl")) for name in ("here", "there"))
    assert len(here) == 2
    for one, two in zip(here, there, strict=True):
        rows = [[without_times(row) for row in read_run(file.parent).rows] for file in (one, two)]
        assert same(*rows)
