"""What loggers get: rows, each once over all resumes; configuration, summaries, texts. W&B is a stand-in."""

import json
from types import SimpleNamespace

import pytest
from tests.configuration.compositions import composed, found
from tests.report.synthetic_runs import sample

from bapo_lightning.callbacks.loggers.run_logger import RunCSVLogger, RunLogger
from bapo_lightning.callbacks.loggers.wandb import STEP, RunWandbLogger, run_id
from bapo_lightning.configuration import machine_rules
from bapo_lightning.configuration.validate import validate
from bapo_lightning.runs.callbacks import build_loggers
from bapo_lightning.system.run_folder.record import read_rollouts

ROWS = [{"step": step, "train/reward": step / 10} for step in range(6)]


class Settings(dict):
    def update(self, values, allow_val_change=False):
        assert allow_val_change
        super().update(values)


def stand_in(folder, offline=True, last_step=None):
    made = RunWandbLogger("project", offline, "group", "job", "name", 0, str(folder))
    defined, logged = {}, []
    made._experiment = SimpleNamespace(
        config=Settings(), tags=("mine",), summary={} if last_step is None else {STEP: last_step},
        log=logged.append, id=made.version,
        define_metric=lambda name, step_metric, summary: defined.update({name: (step_metric, summary)}),
    )  # fmt: skip
    return made, defined, logged


@pytest.mark.parametrize(
    ("last_step", "expected"),
    [(None, [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]), (3, [4, 5, 6, 7, 8, 9]), (5, [6, 7, 8, 9]), (7, [8, 9])],
    ids=["it has nothing", "its tail was lost", "it has all", "it has rows that were cut off"],
)
def test_w_and_b_gets_each_row_that_it_lacks_and_no_row_twice(tmp_path, last_step, expected):
    made, _, sent = stand_in(tmp_path, offline=False, last_step=last_step)
    made.catch_up(ROWS)
    for step in range(6, 10):
        made.log_metrics({"train/reward": step / 10}, step)
    assert [row[STEP] for row in sent] == expected
    assert all(row["train/reward"] == row[STEP] / 10 and "step" not in row for row in sent)


def test_a_run_keeps_its_id_and_two_runs_of_one_name_have_two(tmp_path):
    folders = [tmp_path / parent / "bapo s0" for parent in "ab"]
    ids = [stand_in(folder)[0].version for folder in folders]
    assert ids[0] != ids[1] and all(name.startswith("bapo-s0-") for name in ids)
    assert [run_id(folder / "wandb") for folder in folders] == ids


def test_at_the_start_w_and_b_gets_the_configuration_and_how_to_sum_up_metrics(tmp_path):
    (tmp_path / "wandb/offline-run-1-id").mkdir(parents=True)  # of an earlier session
    made, defined, _ = stand_in(tmp_path)
    assert "anonymous" not in made._wandb_init  # of Lightning; W&B warns of it
    config = {"seed": 3, "algorithm": {"name": "bapo"}, "staleness": 8}
    made.describe(config)
    assert made.experiment.config == config and made.experiment.tags == ("mine", "staleness-8")
    assert defined["train/reward"] == (STEP, "last,max,mean")
    assert defined["policy/entropy"] == (STEP, "last,min,mean")
    assert {path.name for path in (tmp_path / "wandb").iterdir()} == {"superseded-offline-run-1-id", "run_id"}


def test_texts_are_sent_while_training_once_and_a_conversation_is_a_transcript_in_one_cell(tmp_path):
    made, _, logged = stand_in(tmp_path)
    made._last_step = 4
    made.log_texts([{"step": 4, "prompt": "1+1=", "versions": [0, 1]}])  # before a resume
    made.log_texts([{"step": 8, "prompt": "2+2=", "versions": [8]}])
    turns = [{"by": "policy", "text": "[1+1]", "calls": 1}, {"by": "environment", "text": "2"}]
    made.log_texts([{"step": 9, "turns": [*turns, {"by": "policy", "text": "2#"}]}, {"step": 9}])
    single, talk = logged
    assert (single[STEP], single["samples"].data) == (8, [[8, "2+2=", "8"]])
    assert talk["samples"].columns == ["step", "turns"]
    assert talk["samples"].data == [[9, "policy: [1+1]\nenvironment: 2\npolicy: 2#"], [9, None]]


def test_at_the_end_w_and_b_gets_the_summary_the_manifest_and_all_sampled_texts(tmp_path):
    made, _, logged = stand_in(tmp_path)
    made.conclude({}, {}, read_rollouts(tmp_path))
    assert logged == []  # no texts, no table
    rollouts = [sample(versions=[0, 1]), sample(8, score=1.0)]
    (tmp_path / "rollouts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rollouts))
    summary = {"reward": {"last": 0.75, "best": None}, "status": "finished", "drops": {"cut": 2}}
    manifest = {"status": "finished", "staleness": 8}
    made.conclude(summary, manifest, read_rollouts(tmp_path))
    assert made.experiment.summary == {"status": "finished", "final/reward/last": 0.75, "final/drops/cut": 2}
    assert made.experiment.config["manifest"] == manifest
    table = logged[0]["rollouts"]
    assert {*table.columns} == {*rollouts[1]} and table.columns[:2] == ["step", "problem"]
    chosen = [table.columns.index(name) for name in ("step", "prompt", "versions", "score")]
    rows = [[row[index] for index in chosen] for row in table.data]
    assert rows == [[0, "<2+3>", "0 1", None], [8, "<2+3>", "8", 1.0]]


def test_a_run_outlives_w_and_b(tmp_path, capsys):
    made, _, _ = stand_in(tmp_path)
    sent = []

    def log(row, **options):
        sent.append(row)
        raise ConnectionResetError("Connection lost")

    made._experiment.log = log
    for step in range(2):
        made.log_metrics({"train/reward": 0.5}, step)
    made.conclude({}, {}, [{"step": 0}])
    made.finalize("success")
    assert len(sent) == 1
    assert capsys.readouterr().err.count("W&B is lost (ConnectionResetError: Connection lost)") == 1


def test_a_run_starts_without_w_and_b(tmp_path, capsys, monkeypatch):
    def init(**options):
        raise OSError("No space left on device")

    monkeypatch.setattr("wandb.init", init)
    made = RunWandbLogger("project", True, "group", "job", "name", 0, str(tmp_path))
    assert made.experiment is None and made.experiment is None
    made.describe({"seed": 3})
    made.log_metrics({"train/reward": 0.5}, step=0)
    said = capsys.readouterr().err
    assert said.startswith("W&B is lost (OSError: No space left on device)")
    assert said.count("W&B is lost") == 1


def test_w_and_b_without_a_login_is_refused_unless_it_stays_offline(monkeypatch):
    online = ("logger=wandb", "logger.wandb.offline=false")
    monkeypatch.setenv("WANDB_MODE", "online")
    monkeypatch.setattr("wandb.login", lambda **options: False)
    (problem,) = found(*online)
    assert problem.startswith("logger.wandb.offline=false, and W&B is not logged in here; run ")
    assert found("logger=wandb") == []
    monkeypatch.setattr("wandb.login", lambda **options: True)
    assert found(*online) == []
    monkeypatch.setattr("wandb.login", None)  # nobody is asked
    monkeypatch.setenv("WANDB_MODE", "disabled")
    assert found(*online) == []


def test_variables_of_w_and_b_are_honoured(monkeypatch):
    assert composed("logger=wandb")["logger"]["wandb"]["project"] == "bapo-lightning"
    keys = {"project": "PROJECT", "entity": "ENTITY", "group": "RUN_GROUP", "notes": "NOTES"}
    for name in keys.values():
        monkeypatch.setenv(f"WANDB_{name}", f"my {name}")
    chosen = composed("logger=wandb", "seed=7")["logger"]["wandb"]
    assert {key: chosen[key] for key in keys} == {key: f"my {name}" for key, name in keys.items()}


def test_tensorboard_writes_into_the_run_folder(tmp_path):
    config = validate(composed("logger=tensorboard", f"run_folder={tmp_path}/run"))
    (tmp_path / "run").mkdir()
    _, logger = build_loggers(config, tmp_path / "run")
    logger.log_metrics({"train/reward": 0.5, "val/additions/avg@4": 0.25}, step=3)
    logger.finalize("success")
    (events,) = (tmp_path / "run/tensorboard").glob("events.*")
    assert b"train/reward" in events.read_bytes()


def test_a_logger_without_its_package_is_refused_with_the_command_that_installs_it(monkeypatch):
    monkeypatch.setattr(machine_rules, "find_spec", lambda name: None)
    (problem,) = found("logger=mlflow")
    assert problem.startswith("logger=mlflow needs a package") and "pip install mlflow;" in problem


def test_the_csv_table_is_written_again_from_the_record(tmp_path):
    for rows in (ROWS[:4], ROWS):
        table = RunCSVLogger(tmp_path, name="csv", version="")
        table.catch_up(rows)
        table.log_metrics({"train/reward": 9.0}, 99)
        table.save()
    lines = (tmp_path / "csv/metrics.csv").read_text().splitlines()
    assert len(lines) == 1 + len(ROWS) + 1 and "9.0" in lines[-1]


def test_a_logger_may_leave_out_what_it_does_not_need():
    class RowsOnly(RunLogger):
        name, version = "rows", ""

        def log_metrics(self, metrics, step=None):
            raise AssertionError

        def log_hyperparams(self, params, *args, **kwargs):
            raise AssertionError

    made = RowsOnly()
    made.describe({"seed": 3})
    made.catch_up([{"step": 0}])
    made.conclude({}, {}, [])
