"""Which run goes on, from which checkpoint, and what is refused; without training."""

import re
import shutil
import subprocess
import sys
from copy import deepcopy
from pathlib import Path
from types import SimpleNamespace

import pytest
from tests.report.synthetic_runs import write_run

from bapo_lightning.runs.resume import open_run, run_to_continue, write_config
from bapo_lightning.system.errors import CheckpointError, ConfigError, DataError
from bapo_lightning.system.run_folder.checkpoint import commit, fingerprints, partial_folder
from bapo_lightning.system.run_folder.journal import JournalDigest
from bapo_lightning.system.run_folder.record import read_manifest
from bapo_lightning.system.run_folder.text_file import write_json

NEW = "bapo-replay-s0-20260301-120000"


def config(root, resume="auto", run=NEW, **changes):
    made = {
        "name": "quickstart", "seed": 0, "algorithm": {"name": "bapo", "bounds": {"low": {"start": 0.6}}},
        "regime": {"name": "replay", "epochs": 8}, "trainer": {"checkpoint_every": 80}, "resume": resume,
        "scale": {"num_rollout_batches": 56, "micro_batch_tokens": 16384}, "output_root": str(root),
        "logger": {"csv": {"save_dir": str(root / "quickstart" / run)}},
        "run_folder": str(root / "quickstart" / run),
    }  # fmt: skip
    return made | changes


def started(root, run, updates=(), status="running", **changes):
    """A run folder with ten bytes of metrics per update and checkpoints after some of them."""
    folder = write_run(root / "quickstart" / run, [], status=status)
    write_config(folder, config(root, None, run, **changes))
    (folder / "metrics.jsonl").write_text("123456789\n" * (max(updates, default=0) + 3))
    (folder / "rollouts.jsonl").write_text("{}\n")
    shutil.copy(folder / "metrics.jsonl", folder / "schedule.jsonl")
    for update in updates:
        partial = partial_folder(folder / "checkpoints", update)
        partial.mkdir(parents=True)
        (partial / "trainer.ckpt").write_bytes(b"weights")
        sizes = {"metrics.jsonl": 10 * update, "rollouts.jsonl": 0, "schedule.jsonl": 10 * update}
        journals = {name: JournalDigest(folder / name).read_on(size) for name, size in sizes.items()}
        files = fingerprints(partial, 0)
        commit(folder / "checkpoints", update, update, 1, run, journals, files)
    return folder


def opened(root, **changes):
    """What happens with `resume=auto` or another choice, as the command line goes about it."""
    wanted = config(root, **changes)
    folder = run_to_continue(wanted["resume"], wanted)
    plain = wanted if folder is None else config(root, **changes | {"run": folder.name})
    return open_plain(plain)


def open_plain(plain):
    run = SimpleNamespace(plain=plain, folder=Path(plain["run_folder"]), resume=plain["resume"])
    return open_run(run)


def test_auto_takes_the_newest_run_that_fits_and_is_not_finished(tmp_path, capsys):
    started(tmp_path, "bapo-replay-s0-20260101-120000", [80])
    expected = started(tmp_path, "bapo-replay-s0-20260102-120000", [80, 160])
    started(tmp_path, "bapo-replay-s0-20260103-120000", [80], status="finished")
    started(tmp_path, "bapo-replay-s0-20260104-120000", [80], regime={"name": "replay", "epochs": 4})
    started(tmp_path, "bapo-replay-s1-20260105-120000", [80])
    (tmp_path / "quickstart/bapo-replay-s0-20260106-120000").mkdir()
    start = opened(tmp_path)
    assert start.folder == expected and start.checkpoint.update == 160 and not start.is_new
    assert start.resume_entry == {"update": 160, "changed": []}


def test_auto_begins_a_new_run_where_there_is_none(tmp_path, capsys):
    started(tmp_path, "bapo-replay-s0-20260103-120000", [80], status="finished")
    started(tmp_path, "grpo-replay-s3-20260103-120000", [80], algorithm={"name": "grpo"}, seed=3)
    start = opened(tmp_path)
    assert start.is_new and start.folder.name == NEW and start.resume_entry is None
    said = capsys.readouterr().out
    assert "no unfinished run bapo-replay-s0-* of this configuration" in said
    assert "(unfinished there: grpo-replay-s3-20260103-120000); a new run begins" in said


def test_auto_with_a_run_folder_of_ones_own_means_that_folder_only(tmp_path, capsys):
    started(tmp_path, "bapo-replay-s0-20260101-120000", [80])
    start = opened(tmp_path, run="mine")
    assert start.is_new and start.folder.name == "mine"
    started(tmp_path, "mine", [80])
    start.release()
    assert opened(tmp_path, run="mine").checkpoint.update == 80


def test_a_finished_run_is_left_alone_unless_it_is_made_longer(tmp_path, capsys):
    folder = started(tmp_path, "mine", [80], status="finished")
    assert opened(tmp_path, run="mine") is None and "is finished" in capsys.readouterr().out
    with pytest.raises(ConfigError, match=r"regime\.epochs: 8 -> 4: .* began with another value"):
        opened(tmp_path, run="mine", regime={"name": "replay", "epochs": 4})
    longer = {"num_rollout_batches": 57, "micro_batch_tokens": 16384}
    changed = opened(tmp_path, resume=str(folder), scale=longer).changed
    assert changed == ["scale.num_rollout_batches: 56 -> 57"]


def test_going_on_cuts_the_journals_and_sets_newer_checkpoints_aside(tmp_path, capsys):
    folder = started(tmp_path, "mine", [80, 160, 240])
    wanted = config(tmp_path, resume=str(folder / "checkpoints/update000080")) | {"run_folder": str(folder)}
    assert run_to_continue(wanted["resume"], config(tmp_path, resume=wanted["resume"])) == folder
    start = open_plain(wanted)
    assert start.checkpoint.update == 80
    start.prepare(wanted)
    assert (folder / "metrics.jsonl").stat().st_size == 800
    assert (folder / "rollouts.jsonl").stat().st_size == 0
    names = ["superseded-update000160", "superseded-update000240", "update000080"]
    assert sorted(path.name for path in (folder / "checkpoints").iterdir()) == names


def test_a_run_goes_on_with_the_held_out_problems_that_it_had(tmp_path, capsys):
    folder = started(tmp_path, "mine", [80])
    had, other = ({"validation": {"own": {"kept": 9, "digest": digest}}} for digest in ("1f", "2e"))
    write_json(folder / "manifest.json", read_manifest(folder) | {"problems": had})
    start, wanted = opened(tmp_path, run="mine"), config(tmp_path, run="mine")
    words = r"data\.validation\.own: the 9 held-out problems differ from .*; put it back, or begin a new run"
    with pytest.raises(DataError, match=words):
        start.prepare(wanted, other)
    assert (folder / "metrics.jsonl").stat().st_size == 830, "nothing is cut off"
    start.prepare(wanted, had)
    start.changed = ["data.validation.own.path: a.jsonl -> b.jsonl"]  # as asked for
    start.prepare(wanted, other)
    write_json(folder / "manifest.json", read_manifest(folder) | {"problems": {}})  # of an older version
    start.changed = []
    start.prepare(wanted, other)


@pytest.mark.parametrize("is_gone", [False, True])
def test_auto_does_not_pass_over_a_run_whose_configuration_was_lost(tmp_path, capsys, is_gone):
    folder = started(tmp_path, "bapo-replay-s0-20260101-120000", [80])
    (folder / "config.yaml").write_text("")
    if is_gone:
        (folder / "config.yaml").unlink()
    for run in ({}, {"run": folder.name}):
        with pytest.raises(ConfigError, match=rf"config\.yaml is empty or gone.* write resume={folder}"):
            opened(tmp_path, **run)
    start = opened(tmp_path, resume=str(folder))
    assert (start.folder, start.checkpoint.update, start.is_new) == (folder, 80, False)
    assert "continues with the given configuration" in capsys.readouterr().out


def test_a_killed_run_is_not_said_to_be_running_while_its_checkpoints_are_checked(tmp_path):
    folder = started(tmp_path, "mine", [80])
    assert read_manifest(folder)["status"] == "running"
    opened(tmp_path, run="mine")
    assert read_manifest(folder)["status"] == "interrupted"


def test_an_empty_manifest_does_not_hide_a_run(tmp_path):
    folder = started(tmp_path, "bapo-replay-s0-20260101-120000", [80])
    (folder / "manifest.json").write_text("")
    assert opened(tmp_path).folder == folder


def test_a_run_killed_before_its_first_checkpoint_begins_again(tmp_path, capsys):
    folder = started(tmp_path, "mine")
    start = opened(tmp_path, run="mine")
    assert start.checkpoint is None
    assert not start.is_new
    assert "has no checkpoint yet: it starts again" in capsys.readouterr().out
    start.prepare(config(tmp_path, run="mine"))
    assert (folder / "metrics.jsonl").stat().st_size == 0
    with pytest.raises(CheckpointError, match="has no checkpoint yet; write resume=auto"):
        opened(tmp_path, resume=str(folder))


def test_a_run_killed_before_it_had_a_configuration_is_new(tmp_path, capsys):
    folder = tmp_path / "quickstart/mine"
    folder.mkdir(parents=True)
    (folder / ".lock").touch()
    start = opened(tmp_path, run="mine")
    assert start.is_new
    start.prepare(config(tmp_path, run="mine"))
    assert (folder / "config.yaml").is_file()


def test_a_folder_with_something_else_in_it_is_refused(tmp_path):
    folder = tmp_path / "quickstart/mine"
    folder.mkdir(parents=True)
    (folder / "thesis.tex").touch()
    with pytest.raises(ConfigError, match="holds files, but no run to resume"):
        opened(tmp_path, run="mine")
    words = "neither a run folder nor one of its checkpoints; write resume=auto"
    with pytest.raises(ConfigError, match=words):
        opened(tmp_path, resume=str(folder))


def test_a_corrupt_checkpoint_or_one_that_misses_rows_is_passed_over(tmp_path, capsys):
    folder = started(tmp_path, "mine", [80, 160, 240])
    (folder / "checkpoints/update000240/trainer.ckpt").write_bytes(b"weighty")
    with (folder / "metrics.jsonl").open("r+b") as file:
        file.truncate(1500)
    start = opened(tmp_path, run="mine")
    assert start.checkpoint.update == 80 and len(start.outdated) == 2
    output = capsys.readouterr().out
    assert "trainer.ckpt is corrupt" in output and "metrics.jsonl is shorter than when" in output
    (folder / "checkpoints/update000080/trainer.ckpt").unlink()
    start.release()
    words = r"resume=auto: no checkpoint is good .*trainer.ckpt is missing"
    with pytest.raises(CheckpointError, match=words):
        opened(tmp_path, run="mine")


def test_records_that_were_changed_are_noticed_and_a_checkpoint_that_is_named_serves_all_the_same(
    tmp_path, capsys
):
    folder = started(tmp_path, "mine", [80, 160])
    with (folder / "metrics.jsonl").open("r+b") as file:
        file.seek(1200)
        file.write(b"7")
    start = opened(tmp_path, run="mine")
    assert start.checkpoint.update == 80
    assert "metrics.jsonl differs from what it was when" in capsys.readouterr().out
    start.release()
    start = opened(tmp_path, run="mine", resume=str(folder / "checkpoints/update000160"))
    assert start.checkpoint.update == 160
    assert "used anyway: " in capsys.readouterr().out


@pytest.mark.parametrize("damage", [lambda text: text[:1504], lambda text: text.replace("9", "8")])
def test_weights_are_used_without_the_record_of_the_order_and_the_loss_is_named(tmp_path, capsys, damage):
    folder = started(tmp_path, "mine", [80, 160])
    schedule = folder / "schedule.jsonl"
    schedule.write_text(damage(schedule.read_text()))
    start = opened(tmp_path, run="mine")
    assert start.checkpoint.update == 160 and not start.outdated
    said = capsys.readouterr().out
    assert "used anyway: " in said and "schedule.jsonl" in said
    assert "so that no run can follow the order of this one" in said
    start.prepare(config(tmp_path, run="mine"))
    assert schedule.read_bytes().endswith(b"\n") and schedule.stat().st_size in (1500, 1600)


@pytest.mark.parametrize("damage", [lambda text: text[:1204], lambda text: text.replace("9", "8")])
def test_the_way_out_that_is_named_for_changed_records_works(tmp_path, damage):
    folder = started(tmp_path, "mine", [160])
    (folder / "metrics.jsonl").write_text(damage((folder / "metrics.jsonl").read_text()))
    with pytest.raises(CheckpointError) as error:
        opened(tmp_path, run="mine")
    (way_out,) = re.findall(r"to use it anyway write resume=(\S+)\)", str(error.value))
    start = opened(tmp_path, run="mine", resume=way_out)
    assert start.checkpoint.update == 160
    start.prepare(config(tmp_path, run="mine"))
    assert (folder / "metrics.jsonl").stat().st_size in (1200, 1600)


def test_checkpoints_of_another_run_are_refused(tmp_path):
    mine, other = started(tmp_path, "mine"), started(tmp_path, "other", [80])
    write_json(mine / "manifest.json", read_manifest(mine) | {"id": "mine"})
    shutil.copytree(other / "checkpoints", mine / "checkpoints")
    (mine / "metrics.jsonl").write_bytes((other / "metrics.jsonl").read_bytes())
    for resume in ("auto", str(mine / "checkpoints/update000080")):
        with pytest.raises(CheckpointError, match="was written by another run"):
            opened(tmp_path, run="mine", resume=resume)


def test_another_configuration_is_refused_and_every_key_named(tmp_path):
    started(tmp_path, "mine", [80])
    other = deepcopy(config(tmp_path, run="mine"))
    other["algorithm"]["bounds"]["low"]["start"] = 0.7
    other["regime"]["minibatches"] = 2
    other["trainer"]["checkpoint_every"] = 5
    with pytest.raises(ConfigError) as error:
        open_plain(other)
    first, second, fix = error.value.problems
    assert first.startswith("algorithm.bounds.low.start: 0.6 -> 0.7")
    assert second.startswith("regime.minibatches: nothing -> 2")
    assert "config.yaml" in fix and "leave resume out" in fix


def test_a_run_folder_that_exists_needs_the_word_resume(tmp_path):
    started(tmp_path, "mine", [80])
    with pytest.raises(ConfigError, match="exists already, and nothing in it may be lost; write resume=auto"):
        opened(tmp_path, resume=None, run="mine").prepare(config(tmp_path, run="mine"))


def test_two_different_runs_cannot_be_meant(tmp_path):
    folder = started(tmp_path, "mine", [80])
    with pytest.raises(ConfigError, match="name two runs; leave run_folder out"):
        opened(tmp_path, resume=str(folder), run="other")


def test_a_second_process_is_refused_until_the_first_is_gone(tmp_path):
    folder = started(tmp_path, "mine", [80])
    code = "import pathlib, sys; from bapo_lightning.system.run_folder.lock import RunLock; "
    code += "lock = RunLock(pathlib.Path(sys.argv[1])); print(1); input()"
    command = [sys.executable, "-c", code, folder]
    other = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert other.stdout.readline() == "1\n"
    words = rf"run_folder=.*mine is in use by process {other.pid} on .*; wait until it ends"
    with pytest.raises(CheckpointError, match=words):
        opened(tmp_path, run="mine")
    other.kill()
    other.wait()
    assert opened(tmp_path, run="mine").checkpoint.update == 80


def test_a_run_of_another_experiment_is_refused_in_one_line_and_many_differences_are_cut(tmp_path):
    other, own = tmp_path / "other", {"scale": {"num_rollout_batches": 1}, "run_folder": "x"}
    for name, text in (("theirs", "a\nb\n" * 200), ("mine", "a\nb\n" * 200)):
        folder = other / name
        folder.mkdir(parents=True)
        keys = {f"data_{index}": text for index in range(40)}
        write_config(folder, {**own, **keys, "name": name})
        present = SimpleNamespace(
            folder=folder, resume=str(folder), plain={**own, **dict.fromkeys(keys, "new"), "name": "mine"}
        )
        with pytest.raises(ConfigError) as error:
            open_run(present)
        problems = error.value.problems
        assert all("\n" not in text and len(text) < 400 for text in problems)
        if name == "theirs":
            assert len(problems) == 1 and "is a run of experiment theirs, this is mine" in problems[0]
        else:
            assert len(problems) == 10 and problems[8] == "... and 32 more"
