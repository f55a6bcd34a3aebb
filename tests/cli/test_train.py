"""The main job as a user runs it, on a few updates."""

import json
import signal

import pytest
import yaml
from tests.commands import Command, train_to_end, wait_until

from bapo_lightning.system.run_folder.checkpoint import list_checkpoints, verify

METRICS = [
    "train/reward", "train/response_length", "train/loss", "train/grad_norm", "train/learning_rate",
    "train/clip_fraction", "train/clip_fraction_positive", "train/clip_fraction_negative", "policy/entropy",
    "policy/approx_kl", "bapo/positive_share", "bapo/positive_share_unclipped",
    "bapo/positive_token_fraction", "bapo/clip_low", "bapo/clip_high", "bapo/target_met",
    "entropy_rule/predicted_delta", "entropy_rule/measured_delta", "entropy_rule/positive_high_prob",
    "entropy_rule/positive_low_prob", "entropy_rule/negative_high_prob", "entropy_rule/negative_low_prob",
    "staleness/age_mean", "staleness/age_max", "staleness/segments_mean", "mismatch/abs_logp_diff_mean",
    "mismatch/abs_logp_diff_max", "mismatch/logp_diff_mean", "mismatch/ratio_max", "mismatch/kl",
    "alarms/divergence", "alarms/entropy", "alarms/gradient", "alarms/mismatch", "rollout/tokens_per_second",
    "rollout/dropped", "rollout/evicted", "rollout/resumed", "rollout/cut", "rollout/reward_timeouts",
    "rollout/reward_failures", "rollout/unparsable", "rollout/uniform_groups", "val/additions/avg@4",
    "val/additions/pass@4", "val/additions/maj@4", "val/additions/cut_fraction",
    "val/additions/unparsable_fraction", "time/rollout_seconds", "time/reward_seconds", "time/update_seconds",
    "time/sync_seconds", "time/wait_seconds", "progress/version", "progress/samples", "progress/tokens",
]  # fmt: skip


def rows(folder):
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def test_a_run_folder_holds_everything_that_the_run_was(trained):
    files = (
        "config.yaml manifest.json metrics.jsonl rollouts.jsonl ledger.jsonl checkpoints summary.json plots"
    )
    assert {path.name for path in trained.iterdir()} == {*files.split(), ".lock"}
    config = yaml.safe_load((trained / "config.yaml").read_text())
    assert config["algorithm"]["name"] == "bapo" and "hydra" not in config
    manifest = json.loads((trained / "manifest.json").read_text())
    facts = [manifest[key] for key in ("status", "algorithm", "staleness", "seed")]
    assert facts == ["finished", "bapo", 8, 0]
    assert verify(trained / "checkpoints/update000008").version == 8
    assert len(list((trained / "plots").glob("*.png"))) == 7
    assert json.loads((trained / "summary.json").read_text())["updates"] == 16
    printed = trained.with_name("printed.txt").read_text()
    assert "update    16/16" in printed and "reward" in printed
    sample = json.loads((trained / "rollouts.jsonl").read_text().splitlines()[0])
    assert sample["prompt"].endswith("=") and sample["versions"] == [0]
    assert sample["status"] in ("correct", "wrong", "unparsable")


def test_metrics_have_one_row_per_update_and_every_documented_name(trained):
    written = rows(trained)
    assert [row["step"] for row in written] == list(range(16))
    assert [row["progress/version"] for row in written] == list(range(1, 17))
    assert [row["staleness/age_max"] for row in written] == [*range(8)] * 2
    assert set(METRICS) <= set().union(*written)


def test_at_age_zero_engine_and_trainer_agree(trained):
    first = rows(trained)[0]
    assert first["mismatch/abs_logp_diff_mean"] < 1e-5
    assert first["mismatch/ratio_max"] == pytest.approx(1.0, abs=1e-4)
    assert first["train/clip_fraction"] == 0.0


@pytest.mark.slow
def test_the_authors_code_runs_in_several_micro_batches(tmp_path):
    options = "algorithm=bapo_authors_code", "scale.micro_batch_tokens=200"
    train_to_end(tmp_path / "run", 1, *options)
    assert len(rows(tmp_path / "run")) == 8


def test_ctrl_c_ends_the_run_with_checkpoint_and_summary(tmp_path):
    folder = tmp_path / "run"
    overrides = [
        "debug=fast", "experiment=additions", "scale.num_rollout_batches=500", f"run_folder={folder}",
    ]  # fmt: skip
    process = Command("bapo_lightning.cli.train", overrides, cwd=tmp_path)
    wait_until((folder / "metrics.jsonl").exists, process)
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate()
    assert process.returncode == 128 + signal.SIGINT
    assert "SIGINT: stopping after this update" in output
    assert json.loads((folder / "manifest.json").read_text())["status"] == "interrupted"
    assert json.loads((folder / "summary.json").read_text())["updates"] == len(rows(folder)) < 4000
    assert verify(list_checkpoints(folder / "checkpoints")[0]).update == len(rows(folder))
