"""Alarms and the watchdog in real runs, set as a user sets them."""

import json

from tests import commands


def train(folder, *overrides):
    return commands.train(f"run_folder={folder / 'run'}", *overrides, cwd=folder)


def rows(folder):
    return [json.loads(line) for line in (folder / "run/metrics.jsonl").read_text().splitlines()]


def test_an_alarm_of_ones_own_stops_a_run_as_failed_with_everything_saved(tmp_path):
    mine = "{metric: train/response_length, below: 1000, patience: 3, action: stop}"
    done = train(
        tmp_path,
        f"+callbacks.alarms.short={mine}",
        "callbacks.alarms.entropy.below=2",
        "callbacks.alarms.gradient.action=off",
    )
    assert done.returncode == 1
    assert "alarm short: stopping after this update" in done.stdout
    (error,) = done.stderr.splitlines()
    assert error.startswith("error: alarm short: train/response_length is ")
    assert (
        "below callbacks.alarms.short.below=1000 in 3 measured updates in a row (policy version 2)" in error
    )
    written = rows(tmp_path)
    assert [(row["alarms/short"], row["alarms/entropy"]) for row in written] == [(0, 0), (0, 0), (1, 0)]
    assert "alarms/gradient" not in written[0]
    manifest = json.loads((tmp_path / "run/manifest.json").read_text())
    assert manifest["status"] == "failed" and "alarm short" in manifest["error"]
    assert json.loads((tmp_path / "run/summary.json").read_text())["updates"] == 3
    assert list((tmp_path / "run/checkpoints").iterdir()) and list((tmp_path / "run/plots").glob("*.png"))


def test_an_alarm_that_warns_lets_the_run_end_well_and_the_watchdog_shows_where_it_was_slow(tmp_path):
    done = train(tmp_path, "callbacks.alarms.entropy.below=2", "callbacks.watchdog.minutes=1e-4")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("warning: alarm entropy: policy/entropy is ") == 1
    assert [row["alarms/entropy"] for row in rows(tmp_path)] == [0, 0, 0, 0, 1, 2, 3, 4]
    log = (tmp_path / "run/watchdog.log").read_text()
    assert "nothing has happened for" in log and "(most recent call first)" in log and "runs/train.py" in log
    assert "warning: nothing has happened for" in done.stderr
    assert json.loads((tmp_path / "run/manifest.json").read_text())["status"] == "finished"
