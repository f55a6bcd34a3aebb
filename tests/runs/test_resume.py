"""Runs that are killed, stopped or damaged end with weights and records of one left alone, to the bit."""

import json
import signal
from pathlib import Path

import pytest
from kill_and_resume import answered_turns
from tests.algorithms.resuming import check_resumed_run
from tests.commands import Command, run_command, wait_until
from tests.runs.written import manifest, rows, same, trainer_state, weights
from tests.wandb_file import history

from bapo_lightning.data.problems.held_out import is_in

SETTINGS = [
    "experiment=additions", "debug=fast", "scale.num_rollout_batches=3", "callbacks.validation.every=6",
    "callbacks.checkpoint.every=5", "logger=[wandb,csv]", "algorithm.bounds.memory=4",
]  # fmt: skip
NUM_UPDATES = 24
ROOT = Path(__file__).resolve().parents[2]
TRAIN = "bapo_lightning.cli.train"


def train(tmp_path, *overrides):
    done = run_command(TRAIN, *SETTINGS, f"output_root={tmp_path}", *overrides)
    assert done.returncode == 0, done.stderr
    return done.stdout


def train_and_signal(tmp_path, number, num_rows, *overrides):
    """Starts a run, sends a signal once it has written so many rows; returns its folder and its output."""

    def has_rows():
        written = list(tmp_path.glob("additions/*/metrics.jsonl"))
        return bool(written) and written[0].read_text().count("\n") >= num_rows

    process = Command(TRAIN, [*SETTINGS, f"output_root={tmp_path}", *overrides])
    wait_until(has_rows, process)
    process.send_signal(number)
    output, _ = process.communicate()
    (folder,) = tmp_path.glob("additions/*")
    return folder, output


def trained(row):
    return {name: value for name, value in row.items() if not name.startswith(("val/", "sync/"))}


def wandb_steps(folder):
    (file,) = folder.glob("wandb/offline-run-*/*.wandb")
    *updates, table = history(file)
    assert "rollouts/_type" in table and not any("rollouts/_type" in row for row in updates)
    return [row["trainer/global_step"] for row in updates if "samples/_type" not in row]


def assert_as_if_never_stopped(folder, whole):
    assert rows(folder) == rows(whole)
    assert [row["step"] for row in rows(folder)] == list(range(NUM_UPDATES))
    assert (folder / "rollouts.jsonl").read_text() == (whole / "rollouts.jsonl").read_text()
    assert same(*(trainer_state(run, NUM_UPDATES) for run in (folder, whole))), "policy, optimizer, loops"
    assert wandb_steps(folder) == list(range(NUM_UPDATES))
    assert (folder / "csv/metrics.csv").read_text().count("\n") == 1 + NUM_UPDATES
    assert manifest(folder)["status"] == "finished"


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    root = tmp_path_factory.mktemp("whole")
    train(root, f"run_folder={root / 'run'}")
    return root / "run"


def test_after_a_kill_auto_finds_the_run_and_ends_it_as_if_it_had_never_been_killed(whole, tmp_path):
    folder, _ = train_and_signal(tmp_path, signal.SIGKILL, num_rows=13)
    torn = (folder / "metrics.jsonl").read_text() + '{"step": 99, "train/rew'
    (folder / "metrics.jsonl").write_text(torn)
    before = manifest(folder)
    output = train(tmp_path, "resume=auto")
    assert f"resumed {folder} at update" in output and "queue of" in output
    assert_as_if_never_stopped(folder, whole)
    after = manifest(folder)
    assert after["started_at"] == before["started_at"] and after["command"] == before["command"]
    (resume,) = after["resumes"]
    assert resume["update"] % 5 == 0 and resume["update"] >= 5 and "resume=auto" in resume["command"]
    assert after["wall_seconds"] > before["wall_seconds"]
    assert len(list(folder.glob("wandb/superseded-offline-run-*"))) == 1
    assert wandb_steps(whole) == list(range(NUM_UPDATES))


@pytest.mark.slow
def test_after_sigterm_and_a_corrupt_newest_checkpoint_the_one_before_serves_as_well(whole, tmp_path):
    folder, output = train_and_signal(tmp_path, signal.SIGTERM, num_rows=11)
    assert "SIGTERM: stopping after this update" in output
    assert manifest(folder)["status"] == "interrupted"
    newest = max((folder / "checkpoints").glob("update*"))
    assert int(newest.name.removeprefix("update")) == len(rows(folder)), "the last update is saved"
    data = bytearray((newest / "trainer.ckpt").read_bytes())
    data[len(data) // 2] ^= 1
    (newest / "trainer.ckpt").write_bytes(data)
    output = train(tmp_path, "resume=auto", "callbacks.checkpoint.every=7")
    assert f"not used: {newest / 'trainer.ckpt'} is corrupt" in output and "moved aside" in output
    assert "changed since the previous session: callbacks.checkpoint.every: 5 -> 7" in output
    assert_as_if_never_stopped(folder, whole)


@pytest.mark.slow
def test_a_run_is_made_longer_and_one_that_is_finished_is_left_alone(whole, tmp_path):
    short = tmp_path / "run"
    train(tmp_path, f"run_folder={short}", "scale.num_rollout_batches=2", "logger=csv")
    output = train(tmp_path, f"resume={short}", "logger=csv")
    assert "scale.num_rollout_batches: 2 -> 3" in output and f"resumed {short} at update 16" in output
    assert [trained(row) for row in rows(short)] == [trained(row) for row in rows(whole)]
    assert same(weights(short, NUM_UPDATES), weights(whole, NUM_UPDATES))
    made = {path: path.stat().st_mtime_ns for path in short.rglob("*") if path.name != ".lock"}
    said = train(tmp_path, f"run_folder={short}", "resume=auto", "logger=csv")
    assert f"{short} is finished: nothing to do" in said
    assert made == {path: path.stat().st_mtime_ns for path in short.rglob("*") if path.name != ".lock"}


@pytest.mark.slow
def test_a_killed_run_does_not_go_on_with_other_held_out_problems(tmp_path):
    rows = [{"problem": f"{10 + n % 80}+{10 + n // 8}=", "answer": str(n)} for n in range(200)]
    table = tmp_path / "own.jsonl"
    table.write_text("".join(json.dumps(row) + "\n" for row in rows))
    own = "data=table", f"data.train.path={table}", "data.train.validation_share=0.4", "logger=csv"
    folder, _ = train_and_signal(tmp_path, signal.SIGKILL, 7, *own)
    whole = table.read_text()
    held_out = next(row for row in rows if is_in("validation", row["problem"], 0.4))
    table.write_text(whole.replace(json.dumps(held_out), json.dumps(held_out | {"answer": "other"})))
    done = run_command(TRAIN, *SETTINGS, f"output_root={tmp_path}", *own, "resume=auto")
    assert done.returncode != 0 and "Traceback" not in done.stderr
    assert "data.validation.held_out: the " in done.stderr
    assert "put it back, or begin a new run" in done.stderr
    table.write_text(whole)
    assert f"resumed {folder} at update" in train(tmp_path, *own, "resume=auto")


def test_advantages_that_remember_every_problem_go_on_from_what_they_knew(tmp_path):
    own = "algorithm=spo", "scale.group_size=1", "regime=reuse"
    check_resumed_run(tmp_path, "train/reward", *own, batches=3)


@pytest.mark.slow
@pytest.mark.drill
@pytest.mark.parametrize(("regime", "kills"), [
    *(("async, partial, turns, following", 2), ("stream, turns", 1), ("replay, ranks", 1)),
    *(("async, saved slowly", 2), ("stream, saved slowly", 2)),
    *(("replay, stopped", 4), ("replay, ranks, stopped", 2), ("replay, shards, stopped", 2)),
])  # fmt: skip
def test_killed_runs_end_as_if_they_had_never_stopped(regime, kills):
    # The drill of `make drill`, with fewer kills and regimes.
    drill = ROOT / "bench/kill_and_resume.py"
    done = run_command(drill, "--kills", kills, "--regimes", regime, cwd=ROOT, timeout=1800)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("as if it had never stopped") == 1


def test_turns_are_compared_without_the_special_tokens_that_no_environment_gets(tmp_path):
    said = (("policy", "1+<pad>2;"), ("environment", "0"), ("policy", "3#"))
    turns = [{"by": by, "text": text} for by, text in said]
    texts = dict.fromkeys(("prompt", "gold", "response", "finish", "status"), "")
    numbers = {"reward": 0.0, "advantage": 0.0, "num_tokens": 6, "versions": [0]}
    row = {"step": 0, "problem": "p", "turns": turns, **texts, **numbers}
    (tmp_path / "rollouts.jsonl").write_text(json.dumps(row) + "\n")
    assert list(answered_turns(tmp_path)) == ['["p", "1+2;"]']
