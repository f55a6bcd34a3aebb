"""When a run starts its ranks itself, what it says when one is lost, and the strategies that it can name."""

import socket
import subprocess
import sys

import pytest
import torch.nn.parallel
from lightning import Trainer
from lightning.fabric.utilities.rank_zero import _get_rank, rank_zero_only

from bapo_lightning.system.errors import LaunchError
from bapo_lightning.system.ranks import launch
from bapo_lightning.system.ranks.rank_group import join
from bapo_lightning.system.ranks.strategies import data_parallel

SRUN = {"SLURM_NTASKS": "2", "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "2"}


@pytest.mark.parametrize(("devices", "nodes", "environment", "expected"), [
    (1, 1, {}, False),
    (2, 1, {}, True),
    ("two", 1, {}, False),  # told by the checks
    (2, 2, {}, False),  # of other machines it knows nothing
    (2, 1, {"LOCAL_RANK": "1", "RANK": "1"}, False),
    (2, 1, {"TORCHELASTIC_RUN_ID": "x"}, False),
    (2, 1, SRUN | {"SLURM_PROCID": "0"}, False),
    # One task of a batch script, which starts the ranks, however many the allocation is for.
    (2, 1, {"SLURM_PROCID": "0", "SLURM_NTASKS": "1"}, True),
    (2, 1, {"SLURM_PROCID": "0", "SLURM_NTASKS": "2"}, True),
])  # fmt: skip
def test_ranks_are_started_unless_somebody_else_did(devices, nodes, environment, expected):
    assert launch.starts_ranks(devices, nodes, environment) is expected


def test_a_rank_ends_with_its_launcher_unless_that_is_slurm_which_ends_it_itself():
    environments = launch.RankPlace(1, 2, 1, 2, 0, "127.0.0.1", 1).variables, {"SLURM_PROCID": "1"}, {}
    assert [launch.has_launcher(environment) for environment in environments] == [True, False, False]


@pytest.mark.parametrize("environment", [
    {"RANK": "1"}, {"RANK": "3"}, {"LOCAL_RANK": "1"}, {"LOCAL_RANK": "x"}, {"RANK": "1", "WORLD_SIZE": "8"},
    {"SLURM_PROCID": "3"}, {"SLURM_PROCID": "1", "SLURM_JOB_NAME": "bash"}, {"JSM_NAMESPACE_RANK": "2"},
    {"SLURM_NTASKS": "2", "SLURM_PROCID": "0", "SLURM_JOB_ID": "7", "SLURM_NPROCS": "2"},  # sbatch -n 2
    {"SLURM_NTASKS": "2", "SLURM_JOB_ID": "7", "SLURM_JOB_NAME": "interactive"},  # salloc -n 2
    {"SLURM_NTASKS": "2", "SLURM_STEP_ID": "4294967290", "SLURM_STEP_NUM_TASKS": "1", "SLURM_PROCID": "0"},
])  # fmt: skip
def test_a_process_of_its_own_is_rank_0_whatever_rank_is_left_over_in_its_variables(environment, monkeypatch):
    assert launch.place_of(environment) == (0, 1) and launch.leads(environment)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(rank_zero_only, "rank", 3)  # as Lightning reads it when it is imported
    ranks = join("cpu", devices=1, num_nodes=1, wait_minutes=1, needs_group=False)
    assert (ranks.rank, ranks.size, rank_zero_only.rank) == (0, 1, 0)
    assert _get_rank() in (None, 0)  # for what looks later
    trainer = Trainer(accelerator="cpu", devices=1, logger=False, plugins=[ranks.environment])
    assert trainer.is_global_zero and trainer.local_rank == 0


@pytest.mark.parametrize(("devices", "environment"), [
    (1, {"RANK": "1", "LOCAL_RANK": "1", "WORLD_SIZE": "2"}),
    (2, {"RANK": "2", "LOCAL_RANK": "0", "WORLD_SIZE": "2"}),
    (1, SRUN | {"SLURM_PROCID": "1"}),
    (2, SRUN | {"SLURM_PROCID": "5"}),
    (2, SRUN | {"SLURM_PROCID": "1"}),  # without --ntasks-per-node, which Lightning wants
])  # fmt: skip
def test_a_place_that_no_rank_of_the_run_can_have_is_refused_in_a_sentence(devices, environment, monkeypatch):
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(LaunchError, match=r"say that it is rank . of 2 .*unset|ntasks-per-node"):
        join("cpu", devices, num_nodes=1, wait_minutes=1, needs_group=False)


def test_the_first_rank_speaks_for_all_and_the_first_that_failed_for_the_run():
    launched = {"LOCAL_RANK": "0", "WORLD_SIZE": "4"}
    environments = {}, launched | {"RANK": "0"}, launched | {"RANK": "3"}, SRUN | {"SLURM_PROCID": "1"}
    assert [launch.leads(environment) for environment in environments] == [True, True, False, False]
    assert [launch.exit_code(codes) for codes in ([0, 0], [0, 1], [130, 130], [0, -9])] == [0, 1, 130, 137]


def test_a_rank_that_a_signal_ended_is_named_with_what_to_do(capsys):
    launch.report_lost([1, 1, None])  # have said why
    launch.report_lost([None, -9, 1])
    assert capsys.readouterr().err == (
        "error: rank 1 was ended by SIGKILL; the other ranks end as well. The run continues from its last "
        "checkpoint with resume=auto\n"
    )


def test_when_one_rank_is_killed_the_others_are_not_waited_for_without_end(monkeypatch, capsys):
    monkeypatch.setattr("bapo_lightning.system.ranks.launch.END_SECONDS", 0.1)
    ranks = [subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]) for _ in range(2)]
    ranks[1].kill()
    assert launch.watch(ranks) == 137
    assert capsys.readouterr().err.count("rank 1 was ended by SIGKILL") == 1


def test_threads_that_were_asked_for_are_left_alone(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert launch.threads(2) == {}


def test_a_free_port_is_not_given_to_programs_that_ask_for_any():
    def asked_for_any():
        with socket.socket() as program:
            program.bind(("", 0))
            return program.getsockname()[1]

    first_served = min(asked_for_any() for _ in range(200))
    assert all(20_000 <= launch.free_port() < first_served for _ in range(50))


def test_without_a_port_outside_of_the_range_that_is_served_any_free_one_is_taken(monkeypatch, tmp_path):
    (tmp_path / "range").write_text("1024\t65535\n")
    monkeypatch.setattr("bapo_lightning.system.ranks.launch.PORT_RANGE", tmp_path / "range")
    assert 1024 <= launch.free_port() <= 65535
    monkeypatch.setattr("bapo_lightning.system.ranks.launch.PORT_RANGE", tmp_path / "no such file")
    assert 20_000 <= launch.free_port() < 49_152


@pytest.mark.parametrize(("wrapper", "name"), [
    (lambda module, broadcast_buffers=True: None, "broadcast_buffers"),
    (lambda module, broadcast_buffers=None, forward_sync_buffers=None: None, "forward_sync_buffers"),
], ids=["torch 2.11", "torch 2.13"])  # fmt: skip
def test_ddp_leaves_buffers_alone_by_the_name_that_torch_has_for_it(wrapper, name, monkeypatch):
    monkeypatch.setattr(torch.nn.parallel, "DistributedDataParallel", wrapper)
    strategy = data_parallel(gradient_as_bucket_view=True)
    assert strategy._ddp_kwargs == {name: False, "gradient_as_bucket_view": True}
