"""The main job as a user runs it, on a few updates."""

import json
import signal

import pytest
import yaml
from tests import commands
from tests.commands import Command, wait_until

from bapo_lightning.run_folder.checkpoint import list_checkpoints, verify

METRICS = [
    "train/reward",
    "train/response_length",
    "train/loss",
    "train/grad_norm",
    "train/clip_fraction",
    "train/clip_fraction_positive",
    "train/clip_fraction_negative",
    "train/learning_rate",
    "policy/entropy",
    "policy/approx_kl",
    "bapo/positive_share",
    "bapo/positive_share_unclipped",
    "bapo/positive_token_fraction",
    "bapo/clip_low",
    "bapo/clip_high",
    "bapo/target_met",
    "entropy_rule/predicted_delta",
    "entropy_rule/measured_delta",
    "entropy_rule/positive_high_prob",
    "entropy_rule/positive_low_prob",
    "entropy_rule/negative_high_prob",
    "entropy_rule/negative_low_prob",
    "staleness/age_mean",
    "staleness/age_max",
    "staleness/segments_mean",
    "mismatch/abs_logp_diff_mean",
    "mismatch/abs_logp_diff_max",
    "mismatch/logp_diff_mean",
    "mismatch/ratio_max",
    "mismatch/kl",
    "alarms/divergence",
    "alarms/entropy",
    "alarms/gradient",
    "alarms/mismatch",
    "rollout/tokens_per_second",
    "rollout/dropped",
    "rollout/evicted",
    "rollout/resumed",
    "rollout/cut",
    "rollout/reward_timeouts",
    "rollout/reward_failures",
    "rollout/unparsable",
    "rollout/uniform_groups",
    "val/additions/avg@4",
    "val/additions/pass@4",
    "val/additions/maj@4",
    "val/additions/cut_fraction",
    "val/additions/unparsable_fraction",
    "time/rollout_seconds",
    "time/reward_seconds",
    "time/update_seconds",
    "time/sync_seconds",
    "time/wait_seconds",
    "progress/version",
    "progress/samples",
    "progress/tokens",
]


def train(tmp_path, *overrides, **options):
    result = commands.train(f"run_folder={tmp_path / 'run'}", *overrides, cwd=tmp_path, **options)
    assert result.returncode == 0, result.stderr
    return result.stdout


def rows(folder):
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("train")
    return folder / "run", train(folder, pictures=True)


def test_a_run_folder_holds_everything_that_the_run_was(finished):
    folder, output = finished
    made = {path.name for path in folder.iterdir()}
    assert made == {
        "config.yaml",
        "manifest.json",
        "metrics.jsonl",
        "rollouts.jsonl",
        "ledger.jsonl",
        "checkpoints",
        "summary.json",
        "plots",
        ".lock",
    }
    config = yaml.safe_load((folder / "config.yaml").read_text())
    assert config["algorithm"]["name"] == "bapo" and "hydra" not in config
    manifest = json.loads((folder / "manifest.json").read_text())
    assert (manifest["status"], manifest["algorithm"], manifest["staleness"], manifest["seed"]) == (
        "finished",
        "bapo",
        8,
        0,
    )
    assert verify(folder / "checkpoints/update000008").version == 8
    assert len(list((folder / "plots").glob("*.png"))) == 7
    assert json.loads((folder / "summary.json").read_text())["updates"] == 8
    assert "update     8/8" in output and "reward" in output


def test_metrics_have_one_row_per_update_and_every_documented_name(finished):
    written = rows(finished[0])
    assert [row["step"] for row in written] == list(range(8))
    assert [row["progress/version"] for row in written] == list(range(1, 9))
    assert [row["staleness/age_max"] for row in written] == list(range(8))
    assert set(METRICS) <= set().union(*written)


def test_at_age_zero_engine_and_trainer_agree(finished):
    first = rows(finished[0])[0]
    assert first["mismatch/abs_logp_diff_mean"] < 1e-5 and first["mismatch/ratio_max"] == pytest.approx(
        1.0, abs=1e-4
    )
    assert first["train/clip_fraction"] == 0.0


def test_rollouts_can_be_read(finished):
    row = json.loads((finished[0] / "rollouts.jsonl").read_text().splitlines()[0])
    assert (
        row["prompt"].endswith("=")
        and row["status"] in ("correct", "wrong", "unparsable")
        and row["versions"] == [0]
    )


def test_the_same_seed_gives_the_same_run(finished, tmp_path):
    train(tmp_path)
    timeless = lambda row: {name: value for name, value in row.items() if "second" not in name}  # noqa: E731
    assert [timeless(row) for row in rows(tmp_path / "run")] == [timeless(row) for row in rows(finished[0])]


@pytest.mark.parametrize(
    "overrides",
    [
        ["algorithm=grpo", "regime=on_policy"],
        ["algorithm=dapo"],
        ["algorithm=bapo_authors_code", "scale.micro_batch_tokens=200"],
        pytest.param(["logger=[wandb,csv]", "algorithm=grpo", "regime=on_policy"], marks=pytest.mark.slow),
    ],
)
def test_every_algorithm_and_logger_runs(tmp_path, overrides):
    train(tmp_path, *overrides)
    written = rows(tmp_path / "run")
    assert len(written) == (1 if "regime=on_policy" in overrides else 8)
    if "logger=[wandb,csv]" in overrides:
        assert list((tmp_path / "run").rglob("*.wandb")) and list((tmp_path / "run").rglob("csv/metrics.csv"))


def test_ctrl_c_ends_the_run_with_checkpoint_and_summary(tmp_path):
    folder = tmp_path / "run"
    overrides = [
        "debug=fast",
        "experiment=additions",
        "scale.num_rollout_batches=500",
        f"run_folder={folder}",
    ]
    process = Command("bapo_lightning.cli.train", overrides, cwd=tmp_path)
    wait_until((folder / "metrics.jsonl").exists, process)
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate()
    assert process.returncode == 128 + signal.SIGINT
    assert "SIGINT: stopping after this update" in output
    assert json.loads((folder / "manifest.json").read_text())["status"] == "interrupted"
    assert json.loads((folder / "summary.json").read_text())["updates"] == len(rows(folder)) < 4000
    assert verify(list_checkpoints(folder / "checkpoints")[0]).update == len(rows(folder))


def test_a_run_folder_that_exists_is_not_touched(tmp_path):
    (tmp_path / "run").mkdir()
    result = commands.train(f"run_folder={tmp_path / 'run'}")
    assert result.returncode == 1 and "exists already" in result.stderr
    assert not list((tmp_path / "run").iterdir())
