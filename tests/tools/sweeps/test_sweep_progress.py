"""Rows of runs: their states, what they read, the widths and heights they take, the time left."""

import io
import json
import time

import pytest
from rich.console import Console

from bapo_lightning.configuration.compose import compose_run
from bapo_lightning.configuration.validate import validate
from bapo_lightning.report.progress import display
from bapo_lightning.tools.sweeps import run
from bapo_lightning.tools.sweeps.job import STOPPED, TrainJob, log_file
from bapo_lightning.tools.sweeps.run import RunRow, RunsTable, followed, num_updates, table_of


def begin(row):
    log_file(row.job.folder).write_text("it began")
    row.look(time.time())


def write_updates(folder, count, reward=0.5):
    folder.mkdir(parents=True, exist_ok=True)
    rows = [{"step": step, "train/reward": reward} for step in range(count)]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def row_of(folder, num_updates=40):
    return RunRow(TrainJob((), folder), num_updates)


def lines(part, width=80, height=24):
    console = Console(file=io.StringIO(), width=width, height=height, color_system=None)
    console.print(part)
    return [line.rstrip() for line in console.file.getvalue().splitlines()]


@pytest.fixture
def terminal(monkeypatch):
    """Modules that take the output for a terminal of 80 columns."""
    console = Console(file=io.StringIO(), force_terminal=True, width=80, height=24, color_system=None)
    for module in (display, run):
        monkeypatch.setattr(module, "on_terminal", lambda: True)
        monkeypatch.setattr(module, "get_console", lambda: console)
    monkeypatch.setattr(run, "LOOK_SECONDS", 0.0)
    return console


def test_a_row_reads_what_its_run_writes(tmp_path):
    row, now = row_of(tmp_path / "grpo-s0"), time.time()
    row.look(now)
    assert row.cells() == ("waiting", "0/40", "", "")
    begin(row)
    write_updates(tmp_path / "grpo-s0", 20)
    row.look(now)
    assert row.cells() == ("running", "20/40", "0.500", "0 s") and row.share == 0.5
    row.end(1)
    assert row.cells()[0] == "FAILED" and row.share == 1


def test_the_reward_is_that_of_the_newest_updates(tmp_path):
    rows = [{"step": step, "train/reward": float(step >= 30)} for step in range(40)]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    row = row_of(tmp_path)
    row.read()
    assert row.reward == 1.0


def test_the_time_left_is_by_the_share_that_this_session_did(tmp_path, monkeypatch):
    now = 100.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    rows = [row_of(tmp_path / name) for name in "abcd"]
    table = RunsTable(rows)
    write_updates(tmp_path / "a", 20)
    begin(rows[0])  # half of it was done by an earlier session
    assert table.seconds_left is None
    now = 130.0
    write_updates(tmp_path / "a", 40)
    rows[0].end(0)
    assert table.seconds_left == pytest.approx(3 * 60)
    told = "[1/4] finished  algorithm=grpo: 40/40 updates, reward 0.500, 30 s; 3:00 left"
    assert table.line(rows[0], "algorithm=grpo") == told


@pytest.mark.parametrize("width", [60, 80, 120])
def test_the_table_fits_and_shortens_names_alone(tmp_path, width):
    name = "algorithm_bapo-algorithm.positive_share_target_0.4-optimizer.optimizer.lr_0.0001-seed_1"
    row = row_of(tmp_path / name, 4000)
    write_updates(tmp_path / name, 1234)
    row.job.began = time.monotonic() - 4000
    begin(row)
    shown = lines(RunsTable([row]), width)
    assert all(len(line) <= width for line in shown)
    assert shown[2].endswith("1234/4000   0.500  1:06:40") and shown[2].startswith("algorithm_bapo")
    assert shown[3].startswith("runs 0/1 ")


def test_of_many_runs_those_at_work_are_shown(tmp_path):
    rows = [row_of(tmp_path / f"run-{number}") for number in range(115)]
    for row in rows[:60]:
        row.end(0)
    begin(rows[60])
    shown = lines(RunsTable(rows), height=20)
    assert len(shown) < 20 and any(line.startswith("run-60  ") for line in shown)
    assert len(lines(table_of(rows, 80))) == 117


def test_runs_are_followed_by_lines_in_a_pipe(tmp_path, capsys):
    rows = {name: row_of(tmp_path / name, 4) for name in "ab"}
    with followed(rows, {"a": ("seed=0",), "b": ("seed=1",)}) as ended:
        write_updates(tmp_path / "a", 4)
        ended("a", 0)
        ended("b", STOPPED)
    first, second = capsys.readouterr().out.splitlines()
    assert first.startswith("[1/2] finished  seed=0: 4/4 updates, reward 0.500; ")
    assert second == "[2/2] stopped   seed=1: 0/4 updates"


def test_runs_are_followed_by_a_table_on_a_terminal(tmp_path, terminal):
    rows = {name: row_of(tmp_path / name, 4) for name in "ab"}
    with followed(rows, {"a": (), "b": ()}) as ended:
        log_file(tmp_path / "a").write_text("it began")
        write_updates(tmp_path / "a", 2)
        (table,) = display._parts.values()
        first, second = lines(table)[2:4]
        assert first.split()[:4] == ["a", "running", "2/4", "0.500"]
        assert second.split() == ["b", "waiting", "0/4"]
        ended("a", 1)
    assert "FAILED" in terminal.file.getvalue() and "[1/2]" not in terminal.file.getvalue()


def test_the_number_of_updates_is_that_of_the_run():
    plain = compose_run(["experiment=quickstart", "run_folder=unused", "regime.epochs=2"])
    run = validate(plain)
    assert num_updates(plain) == run.scale.num_rollout_batches * run.staleness.updates_per_rollout_batch
