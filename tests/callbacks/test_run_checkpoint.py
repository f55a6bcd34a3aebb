"""When a checkpoint is made, what it holds, and that two ranks make one together."""

import faulthandler
import hashlib
import os
import signal
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import lightning as L
import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from tests.commands import start_ranks
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

from bapo_lightning.callbacks.graceful_stop import GracefulStop, stop_code
from bapo_lightning.callbacks.run_checkpoint import DirectCheckpointIO, RunCheckpoint
from bapo_lightning.system.ranks.channel import Channel
from bapo_lightning.system.ranks.launch import free_port
from bapo_lightning.system.ranks.rank_group import ALONE, RankGroup, join
from bapo_lightning.system.run_folder import checkpoint as checkpoint_files
from bapo_lightning.system.run_folder.checkpoint import commit, list_checkpoints, partial_folder, verify
from bapo_lightning.system.run_folder.journal import JournalDigest
from bapo_lightning.system.stopping import STOPPING


class Counting(L.LightningDataModule):
    """Batches 0, 1, 2...; the state is the next one."""

    def __init__(self, length, rank=0):
        super().__init__()
        self.length, self.next, self.rank = length, 0, rank

    def train_dataloader(self):
        return Loader(self)

    def resume_state(self):
        assert self.rank == 0, "the data side is the leader's"
        return {"summary": f"next batch {self.next}", "next": self.next}

    def load_resume_state(self, state):
        assert self.rank == 0, "the data side is the leader's"
        self.next = state["next"]

    def assist(self):
        assert self.rank != 0, "the leader has nobody to assist"


class Loader:
    def __init__(self, data):
        self.data = data

    def __len__(self):
        return self.data.length

    def __iter__(self):
        while True:
            self.data.next += 1
            yield torch.tensor([float(self.data.next - 1)])


class Learner(L.LightningModule):
    """Its weight depends on every batch and on the global generator."""

    def __init__(self):
        super().__init__()
        self.automatic_optimization = False
        self.weight = torch.nn.Parameter(torch.zeros(1))
        self.seen = []

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=0.1)

    def training_step(self, batch, batch_idx):
        self.seen.append((batch_idx, int(batch)))
        optimizer = self.optimizers()
        optimizer.zero_grad()
        self.manual_backward(((self.weight - batch - torch.randn(1)) ** 2).sum())
        optimizer.step()


class StopAfter(L.Callback):
    def __init__(self, update, number):
        self.update, self.number = update, number

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        if batch_idx + 1 == self.update:
            signal.raise_signal(self.number)


def fit(
    folder, length=9, stop=None, every=4, minutes=None, keep=2, resumed=None, ranks=ALONE, data=None, **more
):
    number = signal.SIGTERM if ranks.rank else signal.SIGINT
    learner = Learner()
    saver = RunCheckpoint(folder, every, minutes, keep, resumed, ranks)
    trainer = L.Trainer(
        accelerator="cpu", max_epochs=1, callbacks=[StopAfter(stop, number), GracefulStop(), saver],
        plugins=[DirectCheckpointIO()], logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False, **more,
    )  # fmt: skip
    path = resumed.path / "trainer.ckpt" if resumed else None
    trainer.fit(learner, datamodule=data or Counting(length, ranks.rank), ckpt_path=path)
    learner.stop_code = stop_code(trainer)
    return learner


def saved(folder):
    return [verify(path).update for path in list_checkpoints(folder / "checkpoints")]


@pytest.mark.parametrize(("options", "expected"), [
    ({}, [9, 8]),  # every 4, the last, and the newest 2 are kept
    ({"stop": 6}, [6, 4]),
    ({"every": 100, "minutes": 1e-9, "keep": 100}, list(range(9, 0, -1))),
])  # fmt: skip
def test_checkpoints_are_made_at_the_interval_when_it_is_late_and_at_the_end(tmp_path, options, expected):
    fit(tmp_path, **options)
    assert saved(tmp_path) == expected


@pytest.mark.parametrize("options", [{}, {"stop": 6}, {"every": 0}])
def test_a_fit_leaves_the_handlers_of_signals_as_they_were(tmp_path, options):
    before = [signal.getsignal(number) for number in STOPPING]
    with pytest.raises(ZeroDivisionError) if "every" in options else nullcontext():
        fit(tmp_path, **options)
    assert [signal.getsignal(number) for number in STOPPING] == before


def test_a_run_goes_on_with_the_next_batch_and_the_same_draws(tmp_path, capsys):
    torch.manual_seed(0)
    whole = fit(tmp_path / "whole")
    torch.manual_seed(0)
    fit(tmp_path / "parts", stop=5)
    torch.manual_seed(1)
    checkpoint = verify(list_checkpoints(tmp_path / "parts/checkpoints")[0])
    rest = fit(tmp_path / "parts", resumed=checkpoint)
    assert rest.seen == [(step, step) for step in range(5, 9)]
    assert torch.equal(rest.weight, whole.weight)
    said = "at update 5 (policy version 5): policy, optimizer, schedule, next batch 5, random states"
    assert said in capsys.readouterr().out


def test_a_finished_run_can_be_made_longer(tmp_path):
    fit(tmp_path)
    longer = fit(tmp_path, length=12, resumed=verify(list_checkpoints(tmp_path / "checkpoints")[0]))
    assert longer.seen == [(9, 9), (10, 10), (11, 11)] and saved(tmp_path) == [12, 9]


class WrittenBesides(Counting):
    """A thread writes rows of a journal at any time: here whenever Lightning's part is saved."""

    def __init__(self, length, folder):
        super().__init__(length)
        self.file, self.sizes = folder / "schedule.jsonl", []

    def resume_state(self):
        self.sizes.append(self.file.stat().st_size if self.file.exists() else 0)
        return super().resume_state() | {"journals": {self.file.name: self.sizes[-1]}}

    def state_dict(self):
        with self.file.open("a") as file:
            file.write('{"do": "sync"}\n')
        return {}


def test_a_checkpoint_promises_the_rows_of_its_state_and_none_that_were_written_while_it_was_saved(tmp_path):
    fit(tmp_path, every=1, keep=9, data=(data := WrittenBesides(4, tmp_path)))
    found = [verify(path).journals["schedule.jsonl"] for path in list_checkpoints(tmp_path / "checkpoints")]
    assert [each["bytes"] for each in reversed(found)] == data.sizes == [0, 15, 30, 45]
    assert all(JournalDigest(data.file).read_on(each["bytes"]) == each for each in found)


def train_on_rank(rank, port, folder):
    # Ranks that wait for each other must not hold up the tests.
    faulthandler.dump_traceback_later(120, exit=True)
    os.environ |= {
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": "2", "RANK": str(rank),
        "LOCAL_RANK": str(rank), "GROUP_RANK": "0", "LOCAL_WORLD_SIZE": "2", "NODE_RANK": "0",
        "TORCHELASTIC_RUN_ID": "test",
    }  # fmt: skip
    ranks = join("cpu", 2, 1, wait_minutes=2, needs_group=True)
    options = {"devices": 2, "strategy": "ddp", "use_distributed_sampler": False, "ranks": ranks}
    # The signal and the clock of one rank only: both must follow.
    alone = {"stop": 5 if rank else None, "minutes": 1e9 if rank else 1e-9, "every": 100}
    learners = [fit(Path(folder) / "parts", **alone, **options)]
    checkpoint = verify(list_checkpoints(Path(folder) / "parts/checkpoints")[0])
    learners.append(fit(Path(folder) / "parts", resumed=checkpoint, **options))
    found = [[learner.seen for learner in learners], [learner.stop_code for learner in learners]]
    torch.save(found, Path(folder) / f"{rank}.pt")
    dist.destroy_process_group()


def test_two_ranks_stop_save_and_go_on_together(tmp_path):
    port = free_port()
    start_ranks(train_on_rank, args=(port, str(tmp_path)), nprocs=2)
    for rank in range(2):
        (first, rest), codes = torch.load(tmp_path / f"{rank}.pt")
        assert codes == [128 + signal.SIGTERM, 0]
        assert [batch_idx for batch_idx, _ in first + rest] == list(range(9))
        if rank == 0:
            assert first == [(step, step) for step in range(5)]
            assert rest == [(step, step) for step in range(5, 9)]
    files = {path.name for path in list_checkpoints(tmp_path / "parts/checkpoints")[0].iterdir()}
    assert files == {"trainer.ckpt", "data.pt", "checkpoint.json"}


def save_shards_on_rank(rank, port, folder):
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
    partial = partial_folder(folder, 3)
    partial.mkdir(exist_ok=True)
    weight = distribute_tensor(torch.arange(1000.0), init_device_mesh("cpu", (2,)), [Shard(0)])
    dcp.save({"weight": weight}, checkpoint_id=partial / "trainer.ckpt")
    hashed, digest = [], checkpoint_files.digest
    checkpoint_files.digest = lambda path: hashed.append(path.name) or digest(path)
    trainer = SimpleNamespace(global_rank=rank, world_size=2)
    ranks = RankGroup(rank, rank, 2, control=Channel(rank, 2))
    found = RunCheckpoint(str(folder), 1, None, 1, ranks=ranks)._all_fingerprints(trainer, partial)
    torch.save((hashed, found), folder / f"{rank}.pt")
    dist.destroy_process_group()


def test_every_rank_hashes_the_shards_that_it_wrote_and_the_manifest_has_all_files(tmp_path):
    start_ranks(save_shards_on_rank, args=(free_port(), tmp_path), nprocs=2)
    (first, found), (second, _) = (torch.load(tmp_path / f"{rank}.pt") for rank in range(2))
    assert (sorted(first), second) == ([".metadata", "__0_0.distcp"], ["__1_0.distcp"])
    paths = {name: partial_folder(tmp_path, 3) / name for name in found}
    assert found == {
        name: {"bytes": path.stat().st_size, "sha256": hashlib.sha256(path.read_bytes()).hexdigest()}
        for name, path in paths.items()
    }
    checkpoint = verify(commit(tmp_path, 3, 3, 2, "a run", {}, found))
    assert sorted(path.name for path in checkpoint.path.rglob("*") if path.is_file()) == [
        *(".metadata", "__0_0.distcp", "__1_0.distcp", "checkpoint.json")
    ]
