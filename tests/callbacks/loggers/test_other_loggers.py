"""Loggers of Lightning that are a choice of `conf/logger/`, and W&B's own variables."""

from tests.configuration.compositions import composed, found

from bapo_lightning.configuration import machine_rules
from bapo_lightning.configuration.validate import validate
from bapo_lightning.runs.callbacks import build_loggers


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


def test_w_and_b_without_a_login_is_refused_unless_it_stays_offline(monkeypatch):
    monkeypatch.setenv("WANDB_MODE", "online")
    monkeypatch.setattr("wandb.login", lambda **options: False)
    (problem,) = found("logger=wandb", "logger.wandb.offline=false")
    assert problem.startswith("logger.wandb.offline=false, and W&B is not logged in here; run ")
    assert found("logger=wandb") == []
    monkeypatch.setattr("wandb.login", lambda **options: True)
    assert found("logger=wandb", "logger.wandb.offline=false") == []
    monkeypatch.setattr("wandb.login", None)  # nobody is asked
    monkeypatch.setenv("WANDB_MODE", "disabled")
    assert found("logger=wandb", "logger.wandb.offline=false") == []


def test_variables_of_w_and_b_are_honoured(monkeypatch):
    assert composed("logger=wandb")["logger"]["wandb"]["project"] == "bapo-lightning"
    for name in ("WANDB_PROJECT", "WANDB_ENTITY", "WANDB_RUN_GROUP", "WANDB_NOTES"):
        monkeypatch.setenv(name, f"my {name}")
    chosen = composed("logger=wandb", "seed=7")["logger"]["wandb"]
    given = {key: chosen[key] for key in ("project", "entity", "group", "notes")}
    assert given == {
        "project": "my WANDB_PROJECT", "entity": "my WANDB_ENTITY", "group": "my WANDB_RUN_GROUP",
        "notes": "my WANDB_NOTES",
    }  # fmt: skip
