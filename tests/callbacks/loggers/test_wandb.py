"""What W&B gets besides rows: configuration, summaries, and the table of sampled texts. A stand-in plays
W&B's run.
"""

import json
from types import SimpleNamespace

from bapo_lightning.callbacks.loggers.run_logger import RunLogger
from bapo_lightning.callbacks.loggers.wandb import STEP, RunWandbLogger, flat_numbers
from bapo_lightning.run_folder.record import read_rollouts


class Settings(dict):
    def update(self, values, allow_val_change=False):
        assert allow_val_change
        super().update(values)


def stand_in(folder):
    made = RunWandbLogger("project", True, "group", "job", "name", 0, str(folder))
    defined, logged = {}, []
    made._experiment = SimpleNamespace(
        config=Settings(), tags=("mine",), summary={}, log=logged.append, id=made.version,
        define_metric=lambda name, step_metric, summary: defined.update({name: (step_metric, summary)}),
    )  # fmt: skip
    return made, defined, logged


def test_at_the_start_w_and_b_gets_the_configuration_and_how_to_sum_up_metrics(tmp_path):
    made, defined, _ = stand_in(tmp_path)
    made.describe({"seed": 3, "algorithm": {"name": "bapo"}, "staleness": 8})
    assert made.experiment.config == {"seed": 3, "algorithm": {"name": "bapo"}, "staleness": 8}
    assert made.experiment.tags == ("mine", "staleness-8")
    assert defined["train/reward"] == (STEP, "last,max,mean")
    assert defined["policy/entropy"] == (STEP, "last,min,mean")


def test_lightnings_setting_that_w_and_b_warns_of_is_left_out(tmp_path):
    assert "anonymous" not in stand_in(tmp_path)[0]._wandb_init


def test_texts_are_sent_while_training_once(tmp_path):
    made, _, logged = stand_in(tmp_path)
    made._last_step = 4
    made.log_texts([{"step": 4, "prompt": "1+1=", "versions": [0, 1]}])  # before a resume
    made.log_texts([{"step": 8, "prompt": "2+2=", "versions": [8]}])
    (row,) = logged
    assert (row[STEP], row["samples"].data) == (8, [[8, "2+2=", "8"]])


def test_a_conversation_is_a_transcript_in_one_cell(tmp_path):
    made, _, logged = stand_in(tmp_path)
    turns = [{"by": "policy", "text": "[1+1]", "calls": 1}, {"by": "environment", "text": "2"}]
    made.log_texts([{"step": 0, "turns": [*turns, {"by": "policy", "text": "2#"}]}, {"step": 0}])
    table = logged[0]["samples"]
    assert table.columns == ["step", "turns"]
    assert table.data == [[0, "policy: [1+1]\nenvironment: 2\npolicy: 2#"], [0, None]]


def test_an_offline_directory_of_an_earlier_session_is_superseded(tmp_path):
    (tmp_path / "wandb/offline-run-1-id").mkdir(parents=True)
    stand_in(tmp_path)[0].describe({})
    assert {path.name for path in (tmp_path / "wandb").iterdir()} == {"superseded-offline-run-1-id", "run_id"}


def test_at_the_end_w_and_b_gets_the_summary_the_manifest_and_all_sampled_texts(tmp_path):
    made, _, logged = stand_in(tmp_path)
    rollouts = [
        {"step": 0, "prompt": "1+1=", "versions": [0, 1]},
        {"step": 8, "prompt": "2+2=", "versions": [8], "finish": "stop"},
    ]
    (tmp_path / "rollouts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rollouts))
    made.conclude(
        {"reward": {"last": 0.75, "best": None}, "status": "finished", "drops": {"cut": 2}},
        {"status": "finished", "staleness": 8},
        read_rollouts(tmp_path),
    )
    assert made.experiment.summary == {"status": "finished", "final/reward/last": 0.75, "final/drops/cut": 2}
    assert made.experiment.config["manifest"] == {"status": "finished", "staleness": 8}
    table = logged[0]["rollouts"]
    assert table.columns == ["step", "prompt", "versions", "finish"]
    assert table.data == [[0, "1+1=", "0 1", None], [8, "2+2=", "8", "stop"]]


def test_a_run_without_sampled_texts_has_no_table(tmp_path):
    made, _, logged = stand_in(tmp_path)
    made.conclude({}, {}, read_rollouts(tmp_path))
    assert logged == []


def test_a_run_outlives_w_and_b(tmp_path, capsys):
    made, _, _ = stand_in(tmp_path)
    sent = []

    def log(row, **options):
        sent.append(row)
        raise ConnectionResetError("Connection lost")

    made._experiment.log = log
    made.log_metrics({"train/reward": 0.5}, step=0)
    made.log_metrics({"train/reward": 0.6}, step=1)
    made.conclude({}, {}, [{"step": 0}])
    made.finalize("success")
    assert len(sent) == 1
    said = capsys.readouterr().err
    assert said.count("W&B is lost (ConnectionResetError: Connection lost)") == 1


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


def test_numbers_of_a_nested_summary_are_named_by_their_path():
    assert flat_numbers({"a": {"b": 1, "c": {"d": 2.5}}, "e": "text", "f": None}) == {"a/b": 1, "a/c/d": 2.5}


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
