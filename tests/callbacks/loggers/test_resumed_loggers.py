"""W&B and the CSV table after a resume: every row once. W&B's server is played by a stand-in."""

from types import SimpleNamespace

import pytest

from bapo_lightning.callbacks.loggers.run_logger import RunCSVLogger
from bapo_lightning.callbacks.loggers.wandb import STEP, RunWandbLogger, run_id

ROWS = [{"step": step, "train/reward": step / 10} for step in range(6)]


def logger(folder, last_step):
    made = RunWandbLogger("project", False, "group", "job", "name", 0, str(folder))
    sent = []
    summary = {} if last_step is None else {STEP: last_step}
    made._experiment = SimpleNamespace(summary=summary, log=sent.append, id=made.version)
    return made, sent


@pytest.mark.parametrize(
    ("last_step", "expected"),
    [(None, [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]), (3, [4, 5, 6, 7, 8, 9]), (5, [6, 7, 8, 9]), (7, [8, 9])],
    ids=["it has nothing", "its tail was lost", "it has all", "it has rows that were cut off"],
)
def test_w_and_b_gets_each_row_that_it_lacks_and_no_row_twice(tmp_path, last_step, expected):
    made, sent = logger(tmp_path, last_step)
    made.catch_up(ROWS)
    for step in range(6, 10):
        made.log_metrics({"train/reward": step / 10}, step)
    assert [row[STEP] for row in sent] == expected
    assert all(row["train/reward"] == row[STEP] / 10 and "step" not in row for row in sent)


def test_a_run_keeps_its_id_and_two_runs_of_one_name_have_two(tmp_path):
    folders = [tmp_path / parent / "bapo s0" for parent in "ab"]
    ids = [logger(folder, None)[0].version for folder in folders]
    assert ids[0] != ids[1] and all(name.startswith("bapo-s0-") for name in ids)
    assert [run_id(folder / "wandb") for folder in folders] == ids


def test_the_csv_table_is_written_again_from_the_record(tmp_path):
    for rows in (ROWS[:4], ROWS):
        table = RunCSVLogger(tmp_path, name="csv", version="")
        table.catch_up(rows)
        table.log_metrics({"train/reward": 9.0}, 99)
        table.save()
    lines = (tmp_path / "csv/metrics.csv").read_text().splitlines()
    assert len(lines) == 1 + len(ROWS) + 1 and "9.0" in lines[-1]
