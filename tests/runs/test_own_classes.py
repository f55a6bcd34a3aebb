"""A user's own classes, and Lightning's, by YAML alone; each with a misspelling and its message."""

import json
import re

import pytest
from tests.commands import run_command
from tests.configuration.compositions import found
from tests.configuration.test_trainer_flags import WORKING_FLAGS

OWN = "tests.runs.own_classes"
STOCK = "lightning.pytorch.callbacks"
SAVE = f"_target_: {STOCK}.ModelCheckpoint"
QUICK = [
    "experiment=additions", "debug=fast", "scale.num_rollout_batches=1", "callbacks.checkpoint.every=4",
    "callbacks.hf_export.every=0",
]  # fmt: skip


def trained(folder, *overrides):
    done = run_command("bapo_lightning.cli.train", *QUICK, f"run_folder={folder}", *overrides)
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return done, rows


def ending(folder):
    manifest = json.loads((folder / "manifest.json").read_text())
    return manifest["status"], manifest.get("stopped_by")


def test_own_advantages_bounds_engine_callback_monitor_and_reward_train_by_yaml_alone(tmp_path):
    algorithm = tmp_path / "conf" / "algorithm"
    algorithm.mkdir(parents=True)
    (algorithm / "mine.yaml").write_text(
        f"""
defaults: [base, _self_]
name: mine
advantages: {{_target_: {OWN}.centred, _partial_: true, scale: null, baseline: null, slope: 0.5}}
bounds: {{_target_: {OWN}.WideningBounds, width: 0.1, step: 0.01}}
"""
    )
    done, rows = trained(
        tmp_path / "run",
        f"hydra.searchpath=[file://{tmp_path / 'conf'}]",
        "algorithm=mine",
        f"rollout.engine._target_={OWN}.CountingEngine",
        f"+callbacks.mine={{_target_: {OWN}.EveryOther, metric: train/reward}}",
        f"+callbacks.longest={{_target_: {OWN}.LongestResponse}}",
        f"reward._target_={OWN}.short_is_right",
        "+reward.limit=20",
    )
    assert [round(row["bapo/clip_high"], 3) for row in rows[:3]] == [1.11, 1.12, 1.13]
    assert all(1 <= row["own/longest_response"] <= 32 for row in rows)
    assert done.stdout.count("own callback: train/reward") == len(rows) == 8


CENTRED = [
    f"algorithm.advantages._target_={OWN}.centred",
    *("algorithm.advantages.scale=null", "algorithm.advantages.baseline=null"),
]
COUNTING = f"rollout.engine._target_={OWN}.CountingEngine"
MISSPELT = [
    ([*CENTRED, "+algorithm.advantages.slop=2"], f"not an option of {OWN}.centred; did you mean slope?"),
    ([*CENTRED, "+algorithm.advantages.slope=-1"], "algorithm.advantages.slope=-1 must be a positive number"),
    ([f"+callbacks.mine={{_target_: {OWN}.EveryOther, metric: train/reward, action: shout}}"],
     "callbacks.mine.action=shout is none of its values; write one of print, keep"),
    ([f"+callbacks.mine={{_target_: {OWN}.EveryOthre, metric: train/reward}}"],
     f"callbacks.mine._target_={OWN}.EveryOthre cannot be imported; did you mean {OWN}.EveryOther?"),
    (["+callbacks.typo=3"], "callbacks.typo=3 has no _target_; write {_target_: package.module.name"),
    ([COUNTING, "+rollout.engine.max_row=3"], f"an option of {OWN}.CountingEngine; did you mean max_rows?"),
    ([f"reward._target_={OWN}.short_is_right", "+reward.limit=many"], "limit=many must be a whole number"),
]  # fmt: skip


@pytest.mark.parametrize(("overrides", "message"), MISSPELT)
def test_a_misspelling_is_named_with_its_remedy(overrides, message):
    (text,) = found(*overrides)
    assert message in text


@pytest.mark.slow
def test_max_time_ends_a_run_with_a_checkpoint_of_its_last_update(tmp_path):
    limits = [
        "+trainer.max_time=00:00:00:02", "scale.num_rollout_batches=200", "callbacks.checkpoint.every=9999",
    ]  # fmt: skip
    _, rows = trained(tmp_path / "run", *limits)
    assert 1 <= len(rows) < 1600
    (saved,) = (tmp_path / "run" / "checkpoints").iterdir()
    assert saved.name == f"update{len(rows):06d}"
    assert ending(tmp_path / "run") == ("stopped", "Timer")
    path = tmp_path / "run" / "manifest.json"
    path.write_text(path.read_text().replace('"stopped"', '"interrupted"'))
    trained(tmp_path / "run", *limits, "resume=auto")  # the time was over before the first update
    assert ending(tmp_path / "run") == ("stopped", "Timer")


@pytest.fixture(scope="module")
def stock(tmp_path_factory):
    """A run with every flag of the Trainer that is accepted, and with stock callbacks."""
    folder = tmp_path_factory.mktemp("stock") / "run"
    return folder, *trained(
        folder,
        *(f"++trainer.{flag}={value}" for flag, value in WORKING_FLAGS.items()),
        f"+callbacks.rate={{_target_: {STOCK}.LearningRateMonitor}}",
        f"+callbacks.device={{_target_: {STOCK}.DeviceStatsMonitor, cpu_stats: true}}",
        f"+callbacks.best={{{SAVE}, monitor: train/reward, mode: max, save_top_k: 2}}",
        f"+callbacks.accuracy={{{SAVE}, monitor: val/additions/avg@4, filename: held_out}}",
        f"+callbacks.summary={{_target_: {STOCK}.RichModelSummary}}",
        f"+callbacks.bar={{_target_: {STOCK}.TQDMProgressBar}}",
        f"+callbacks.rich={{_target_: {STOCK}.RichProgressBar}}",
        "callbacks.rich=null",
    )


def test_every_flag_of_the_trainer_that_is_accepted_trains(stock):
    _, done, rows = stock
    assert {row["step"] for row in rows} == set(range(8))
    assert "FIT Profiler Report" in done.stdout + done.stderr


def test_stock_callbacks_follow_the_metrics_of_a_run(stock):
    folder, _, rows = stock
    merged = {row["step"]: {} for row in rows}
    for row in rows:
        merged[row["step"]] |= row
    assert all(any(key.startswith("lr-") for key in row) for row in merged.values())
    assert any("cpu_percent" in key for key in merged[3])
    saved = sorted(path.name for path in (folder / "model_checkpoints").glob("*.ckpt"))
    assert len(saved) == 3 and "held_out.ckpt" in saved


@pytest.mark.slow
def test_early_stopping_counts_updates_of_a_training_metric_and_saves_the_last(tmp_path):
    options = "monitor: train/response_length, mode: min, min_delta: 100, patience: 2"
    stop = f"+callbacks.stop={{_target_: {STOCK}.EarlyStopping, {options}}}"
    done, rows = trained(tmp_path / "run", stop, "callbacks.checkpoint.every=80")
    assert len(rows) == 3  # the first value is the best, and two more do not beat it by 100 tokens
    assert [path.name for path in (tmp_path / "run" / "checkpoints").iterdir()] == ["update000003"]
    assert ending(tmp_path / "run") == ("stopped", "EarlyStopping")
    assert "stopped by EarlyStopping after 3 of 8 updates" in done.stdout
    again, _ = trained(tmp_path / "run", stop, "callbacks.checkpoint.every=80", "resume=auto")
    assert "was stopped by EarlyStopping: nothing to do" in again.stdout
    _, rows = trained(tmp_path / "run", "callbacks.checkpoint.every=80", "resume=auto")
    assert len(rows) == 8 and ending(tmp_path / "run") == ("finished", None)


@pytest.mark.slow
def test_a_run_that_a_callback_of_your_own_stopped_names_it(tmp_path):
    done, _ = trained(tmp_path / "run", f"+callbacks.mine={{_target_: {OWN}.StopsAt, update: 2}}")
    assert ending(tmp_path / "run") == ("stopped", "StopsAt")
    assert "stopped by StopsAt after 2 of 8 updates" in done.stdout


@pytest.mark.parametrize(("name", "words"), [
    ("Exits", r"own_classes\.py, line \d+ ended the process \(SystemExit\); return or raise an error"),
    ("ExitsWhenMade", r"own_classes\.ExitsWhenMade refuses its options \(SystemExit: 0\)"),
])  # fmt: skip
def test_a_class_that_exits_is_an_error_with_its_place(tmp_path, name, words):
    own = f"+callbacks.mine._target_={OWN}.{name}"
    done = run_command("bapo_lightning.cli.train", *QUICK, f"run_folder={tmp_path / 'run'}", own)
    assert done.returncode == 1
    assert len(re.findall(words, done.stderr)) == 1 and "Traceback" not in done.stderr
