"""Commands whose ranks or engines are on the nodes of a Ray cluster."""

import os
from contextlib import ExitStack

import pytest
import torch
from run_comparison import differences, ledger_problems, newest, ranks_of, row_problems
from tests.commands import Command, train, wait_until

from bapo_lightning.system.errors import RankError
from bapo_lightning.system.run_folder.record import read_run

pytestmark = pytest.mark.slow
# A rank has one sample of each update: a sum of two gradients has one order.
OWN = (
    *("cpu_threads=1", "scale.group_size=2", "scale.micro_batch_tokens=8", "regime.epochs=1"),
    *("regime.minibatches=8", "callbacks.validation.every=8"),
)
ALONE = ("rollout=hf", "rollout.engine.max_rows=8")
ON_RAY = (
    *("strategy=ddp", "trainer.num_nodes=2", "trainer.accelerator=cpu", "ranks=ray"),
    *("rollout=ray", "rollout.engine.actors=3", "rollout.engine.cpu_threads=1"),
    "rollout.engine.requests_per_call=8",
)
OF_ITS_WAY = ("second", "fleet/", "search/")  # metrics of how an update was made
ROUNDED = 1e-6  # sums over the tokens of all ranks have another order


def assert_the_same_but_for_rounded_metrics(whole, other):
    # The last entropy is among the counts, and a lone micro-batch of a rank guesses no bounds.
    rounded = ("metrics of update", "counts", "guesses")
    assert [text for text in differences(whole, other) if not text.startswith(rounded)] == []
    files = [newest(folder) / "trainer.ckpt" for folder in (whole, other)]
    counts = [torch.load(file, weights_only=True)["counts"] for file in files]
    assert counts[1] == pytest.approx(counts[0], rel=ROUNDED)
    assert (whole / "rollouts.jsonl").read_bytes() == (other / "rollouts.jsonl").read_bytes()
    for one, two in zip(read_run(whole).rows, read_run(other).rows, strict=True):
        wanted = {key: one[key] for key in one if not any(part in key for part in OF_ITS_WAY)}
        found = {key: two[key] for key in wanted}
        assert found == pytest.approx(wanted, rel=ROUNDED, abs=ROUNDED, nan_ok=True)


@pytest.mark.drill
def test_two_trainers_and_three_engines_on_the_same_devices_train_to_the_bit_what_one_process_does(tmp_path):
    """On a cluster that the command starts, with buffered groups."""
    whole, several = tmp_path / "whole", tmp_path / "several"
    own = (*OWN, "regime=reuse", "scale.num_rollout_batches=2")
    shared = ("ranks.placement=together", "rollout.engine.cpus=0.5")
    together = ("trainer.devices=2", "trainer.num_nodes=1", *shared)
    for folder, options in ((whole, ALONE), (several, (*ON_RAY, *together))):
        done = train(*own, *options, f"run_folder={folder}")
        assert done.returncode == 0, done.stdout + done.stderr
    assert "2 ranks, strategy DDPStrategy" in done.stdout and "written to" in done.stdout
    assert_the_same_but_for_rounded_metrics(whole, several)
    assert ranks_of(several) == []


@pytest.mark.drill
def test_two_trainers_train_next_to_three_engines(nodes, tmp_path):
    folder = tmp_path / "run"
    own = ("regime=async", "scale.num_rollout_batches=3", "cpu_threads=1", f"run_folder={folder}")
    done = train(*own, *ON_RAY, f"rollout.engine.address={nodes.address}")
    assert done.returncode == 0, done.stdout + done.stderr
    assert ledger_problems(folder) + row_problems(folder) == []
    rows = read_run(folder).rows
    assert 0 < max(row["staleness/age_max"] for row in rows) <= 7
    assert {row["fleet/engines"] for row in rows} == {3}


@pytest.mark.drill
def test_a_run_whose_driver_and_rank_are_killed_ends_as_one_process_does(nodes, tmp_path):
    whole, several = tmp_path / "whole", tmp_path / "several"
    own = (*OWN, "regime=partial", "scale.num_rollout_batches=2", "callbacks.checkpoint.every=1")
    assert train(*own, *ALONE, f"run_folder={whole}").returncode == 0
    several.mkdir()
    options = ["experiment=additions", "debug=fast", *own, *ON_RAY, f"rollout.engine.address={nodes.address}"]
    for wound in ("driver", "rank", None):
        command = Command("bapo_lightning.cli.train", [*options, f"run_folder={several}", "resume=auto"])
        before = updates(several)
        wait_until(lambda: command.poll() is not None or updates(several) > before + 2, command)  # noqa: B023
        if wound == "driver":
            command.kill()
        elif wound == "rank":
            next(rank for rank in ranks_of(several) if rank.environ()["RANK"] == "1").kill()
        output = command.communicate()
        if wound == "rank":
            assert command.returncode == 1 and "rank 1 was ended by SIGKILL" in output[1]
        elif wound is None:
            assert command.returncode == 0, output
        wait_until(lambda: ranks_of(several) == [], command, timeout=30)
    assert_the_same_but_for_rounded_metrics(whole, several)
    assert ledger_problems(several) + row_problems(several) == []


def updates(folder):
    """Number of updates on record."""
    rows = folder / "metrics.jsonl"
    return len(rows.read_text().splitlines()) if rows.exists() else 0


@pytest.fixture
def connected(nodes):
    from bapo_lightning.extras.ray.joining import join, leave

    join(nodes.address, 0, "ranks.address")
    yield
    leave()


def shape(placement, **changes):
    from bapo_lightning.extras.ray.nodes import Shape

    own = {"num_nodes": 1, "ranks_per_node": 1, "cpus": 1, "wants_gpus": True, "fleet_cpus": 0}
    return Shape(**{**own, "is_apart": placement == "apart", **changes})


def test_ranks_apart_take_gpus_from_the_fleet_and_ranks_together_share_them(nodes, connected):
    from bapo_lightning.extras.ray.joining import room
    from bapo_lightning.extras.ray.nodes import reserved, unreserved

    with nodes.one_more(num_gpus=2):
        per_node = {"CPU": 1.0, "GPU": 1.0}
        assert sorted(room(0, 1).values()) == [0, 0, 0, 2]
        with ExitStack() as stack:
            assert len(reserved(stack, shape("apart"), per_node)) == 1
            assert sorted(room(0, 1).values()) == [0, 0, 0, 1]
        (strategy,) = unreserved(shape("together"), per_node)
        assert room(0, 1)[strategy.node_id] == 2


def test_nodes_that_do_not_suffice_or_are_not_as_this_machine_are_named(nodes, connected, monkeypatch):
    from bapo_lightning.extras.ray import nodes as ranks

    monkeypatch.setattr(ranks, "RESERVE_SECONDS", 0.5)
    needs = r"does not have 1 node with 9 CPUs free on each, for trainer.devices=9 and trainer.num_nodes=1"
    for placement in ("apart", "together"):
        with pytest.raises(RankError, match=needs):
            ranks.launch(nodes.address, shape(placement, ranks_per_node=9, wants_gpus=False), [])
    monkeypatch.setattr(ranks, "versions", lambda: {"torch": "1.0"})
    with pytest.raises(RankError, match=r"of the Ray cluster has torch .* instead of 1\.0"):
        ranks.launch(nodes.address, shape("together", wants_gpus=False), [])
    monkeypatch.undo()
    with pytest.raises(RankError, match="cannot start ranks: it has no folder"):
        monkeypatch.setattr(os, "getcwd", lambda: "/not/on/that/node")
        ranks.launch(nodes.address, shape("together", wants_gpus=False), [])
