"""A disk that is full ends a run with one sentence, and the run goes on when there is room."""

import json
import os

from tests.commands import Command, train, wait_until

SETTINGS = [
    "experiment=additions",
    "debug=fast",
    "scale.num_rollout_batches=8",
    "callbacks.checkpoint.every=4",
]


def test_a_full_disk_is_told_in_one_sentence_and_nothing_is_lost(tmp_path):
    folder = tmp_path / "run"
    metrics = folder / "metrics.jsonl"
    run = Command("bapo_lightning.cli.train", [*SETTINGS, f"run_folder={folder}"])
    wait_until(lambda: any(folder.glob("checkpoints/update*")), run)
    (tmp_path / "full").symlink_to("/dev/full")
    metrics.rename(tmp_path / "rows")
    os.replace(tmp_path / "full", metrics)
    _, errors = run.communicate()
    assert run.returncode == 1 and "Traceback" not in errors
    assert f"error: there is no room left to write to {folder}; make some, and go on" in errors
    os.replace(tmp_path / "rows", metrics)
    done = train(*SETTINGS, f"run_folder={folder}", "resume=auto")
    assert done.returncode == 0, done.stderr
    assert [json.loads(row)["step"] for row in metrics.read_text().splitlines()] == list(range(64))
