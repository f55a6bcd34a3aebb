"""Checkpoint folders: whole or not at all, checked to the byte, the newest kept."""

import json

import pytest

from bapo_lightning.system.errors import CheckpointError
from bapo_lightning.system.run_folder import checkpoint
from bapo_lightning.system.run_folder.checkpoint import FORMAT, Checkpoint, verify

JOURNALS = {"metrics.jsonl": {"bytes": 120, "sha256": "f00"}, "rollouts.jsonl": {"bytes": 0, "sha256": ""}}


def make(root, update, version=None):
    partial = checkpoint.partial_folder(root, update)
    (partial / "trainer.ckpt").mkdir(parents=True)  # a sharded one
    (partial / "trainer.ckpt/shard").write_bytes(b"weights" * 1000)
    (partial / "rank0.pt").write_bytes(b"queue")
    version, files = update if version is None else version, checkpoint.fingerprints(partial, 0)
    return checkpoint.commit(root, update, version, 1, "a run", JOURNALS, files)


def test_a_checkpoint_is_read_back_with_what_it_knows(tmp_path):
    folder = make(tmp_path, 80, version=79)
    assert folder == tmp_path / "update000080"
    assert verify(folder) == Checkpoint(folder, 80, 79, 1, "a run", JOURNALS)
    assert not checkpoint.partial_folder(tmp_path, 80).exists()


def test_what_was_not_committed_is_not_seen_and_is_removed(tmp_path):
    make(tmp_path, 80)
    partial = checkpoint.partial_folder(tmp_path, 160)
    partial.mkdir()
    (partial / "trainer.ckpt").write_bytes(b"half")
    (tmp_path / ".update000040.removed").mkdir()
    (tmp_path / "notes").mkdir()
    assert [path.name for path in checkpoint.list_checkpoints(tmp_path)] == ["update000080"]
    checkpoint.remove_leftovers(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["notes", "update000080"]
    checkpoint.remove_leftovers(tmp_path / "not made yet")
    assert checkpoint.list_checkpoints(tmp_path / "not made yet") == []


def flip(path):
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def other_update(folder):
    file = folder / "checkpoint.json"
    sealed = json.loads(file.read_text())
    sealed["content"]["journals"]["metrics.jsonl"]["bytes"] = 12
    file.write_text(json.dumps(sealed))


@pytest.mark.parametrize(("damage", "message"), [
    (lambda folder: flip(folder / "trainer.ckpt/shard"), "trainer.ckpt/shard is corrupt: its digest differs"),
    (lambda folder: (folder / "rank0.pt").write_bytes(b"que"), "rank0.pt has 3 bytes instead of 5"),
    (lambda folder: (folder / "rank0.pt").unlink(), "rank0.pt is missing"),
    (lambda folder: (folder / "checkpoint.json").unlink(), "checkpoint.json cannot be read"),
    (lambda folder: (folder / "checkpoint.json").write_text("{"), "checkpoint.json is corrupt"),
    (lambda folder: (folder / "checkpoint.json").write_bytes(b"\xff\xfe"), "checkpoint.json is corrupt"),
    (lambda folder: (folder / "checkpoint.json").write_text("[]"), "checkpoint.json is corrupt"),
    (other_update, "checkpoint.json is corrupt: its digest differs"),
])  # fmt: skip
def test_any_damage_is_noticed_and_named(tmp_path, damage, message):
    folder = make(tmp_path, 80)
    damage(folder)
    with pytest.raises(CheckpointError, match=message):
        verify(folder)


def test_a_renamed_checkpoint_and_one_of_another_format_are_refused(tmp_path, monkeypatch):
    with pytest.raises(CheckpointError, match="holds update 80: it was renamed"):
        verify(make(tmp_path, 80).rename(tmp_path / "update000090"))
    monkeypatch.setattr(checkpoint, "FORMAT", FORMAT - 1)
    folder = make(tmp_path, 80)
    monkeypatch.undo()
    with pytest.raises(CheckpointError, match=f"has format {FORMAT - 1}, this version reads {FORMAT}"):
        verify(folder)


def test_the_newest_are_kept_in_the_order_of_updates_not_of_names(tmp_path):
    for update in (999_990, 999_995, 1_000_000):
        make(tmp_path, update)
    checkpoint.prune(tmp_path, keep=2)
    assert [path.name for path in checkpoint.list_checkpoints(tmp_path)] == ["update1000000", "update999995"]
    assert len(list(tmp_path.iterdir())) == 2


def test_one_that_is_set_aside_is_not_read_any_more_and_makes_room(tmp_path):
    make(tmp_path, 80)
    for _ in range(2):
        assert checkpoint.set_aside(make(tmp_path, 160)) == tmp_path / "superseded-update000160"
    assert [path.name for path in checkpoint.list_checkpoints(tmp_path)] == ["update000080"]


def test_an_update_that_is_saved_again_replaces_the_old_one(tmp_path):
    make(tmp_path, 80, version=80)
    assert verify(make(tmp_path, 80, version=79)).version == 79
