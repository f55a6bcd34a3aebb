"""Alarms, the watchdog, validation and the correction in real runs; one with an engine that lies."""

import json

import pytest
from tests import commands
from tests.runs.written import manifest, rows

from bapo_lightning.system.run_folder.record import read_run

LYING_ENGINE = '''
from array import array
from dataclasses import replace

import torch

from bapo_lightning.rollout.hf.engine import HFEngine


class RawLogprobsEngine(HFEngine):
    """Samples at the temperature asked for and reports log-probs at temperature 1."""

    def generate(self, requests, *sampling):
        made = super().generate(requests, *sampling)
        return [self.lie(request, generation) for request, generation in zip(requests, made)]

    def lie(self, request, generation):
        logprobs = self.raw(request.token_ids, generation.segment.token_ids)
        return replace(generation, segment=replace(generation.segment, logprobs=logprobs))

    @torch.inference_mode()
    def raw(self, prompt, response):
        tokens = torch.tensor([[*prompt, *response]])
        logits = self._model(tokens, use_cache=False).logits[0, :-1]
        logp = logits.log_softmax(-1).gather(-1, tokens[0, 1:, None])
        return array("f", logp[-len(response) :, 0].tolist())
'''
# The tolerance lets it past the probe of the weight sync, which is the first to notice.
LYING = ["rollout.engine._target_=raw_engine.RawLogprobsEngine", "rollout.temperature=1.6"]
LYING.append("rollout.weight_sync.tolerance=0.99")


def train(folder, *overrides):
    (folder / "raw_engine.py").write_text(LYING_ENGINE)
    return commands.train(f"run_folder={folder / 'run'}", *overrides, cwd=folder)


@pytest.fixture(scope="module")
def honest(tmp_path_factory):
    """A run whose weights do not move, with a correction, validation and alarms; its folder and output."""
    folder = tmp_path_factory.mktemp("honest")
    saver = "_target_: lightning.pytorch.callbacks.ModelCheckpoint, dirpath: ${run_folder}/best"
    done = train(
        folder,
        *("scale.num_rollout_batches=2", "optimizer.optimizer.lr=1e-12", "callbacks.validation.every=6"),
        *("correction=truncated_is", "rollout.temperature=1.6", "callbacks.alarms.mismatch.action=stop"),
        *("callbacks.alarms.entropy.below=3.5", "callbacks.watchdog.minutes=1e-4"),
        f"+callbacks.best={{{saver}, monitor: val/additions/avg@4, mode: max, save_top_k: -1}}",
    )
    assert done.returncode == 0, done.stderr
    return folder / "run", done


@pytest.mark.slow
def test_a_lying_engine_is_called_out_and_the_correction_takes_up_the_difference(tmp_path):
    done = train(tmp_path, *LYING, "scale.num_rollout_batches=2", "correction=masked_is")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("warning: alarm mismatch: mismatch/abs_logp_diff_mean is") == 1
    written = rows(tmp_path / "run")
    assert [row["alarms/mismatch"] for row in written] == [1] * 8 + [2] * 8
    first = written[0]
    assert first["mismatch/abs_logp_diff_mean"] > 0.1
    assert first["mismatch/logp_diff_mean"] > 0.05, "what it reports cannot be what it samples from"
    assert first["train/clip_fraction"] == 0, "the ratio is still 1 at age 0"
    assert first["correction/weight_mean"] > 1.02
    assert all(row["correction/effective_sample_size"] < 0.999 for row in written)
    assert manifest(tmp_path / "run")["status"] == "finished"


def test_a_correction_sees_the_whole_fresh_batch_and_the_weights_it_enters_training_with(honest):
    written = rows(honest[0], without=())
    assert [row["alarms/mismatch"] for row in written] == [0] * 16
    assert [index for index, row in enumerate(written) if "mismatch/kl" in row] == [0, 8]
    assert max(written[0]["mismatch/abs_logp_diff_max"], written[8]["mismatch/abs_logp_diff_max"]) < 1e-4
    for row in written:
        assert row["correction/effective_sample_size"] == pytest.approx(1, abs=1e-4)
        assert row["correction/masked_fraction"] == row["correction/truncated_fraction"] == 0
    assert written[0]["time/proximal_seconds"] > 0 and "time/proximal_seconds" not in written[1]


def test_an_alarm_that_warns_lets_the_run_end_well_and_the_watchdog_shows_where_it_was_slow(honest):
    folder, done = honest
    assert done.stdout.count("warning: alarm") == done.stdout.count("warning: alarm entropy: ") == 1
    assert [row["alarms/entropy"] for row in rows(folder)] == [0] * 4 + list(range(1, 13))
    log = (folder / "watchdog.log").read_text()
    assert "nothing has happened for" in log and "(most recent call first)" in log and "runs/train.py" in log
    assert "warning: nothing has happened for" in done.stderr
    assert manifest(folder)["status"] == "finished"


def test_the_first_row_has_the_accuracy_before_training(honest):
    folder, done = honest
    steps, values = read_run(folder).series("val/additions/avg@4")
    assert steps == [0, 5, 11, 15] and len(set(values)) == 1  # the same seeds, and weights that do not move
    before = f"held out before training: additions/avg@4 {values[0]:.3f}\n"
    shown = done.stdout.split(before)[1].splitlines()
    assert all(line.startswith("  ") and " -> " in line and len(line) <= 80 for line in shown[:2])
    assert shown[0] != shown[1]
    assert "held out after 6 updates: additions/avg@4" in done.stdout


def test_a_stock_callback_does_not_take_it_for_the_accuracy_of_trained_weights(honest):
    assert len(list((honest[0] / "best").iterdir())) == 3  # after updates 6, 12 and 16


def test_an_alarm_of_ones_own_stops_a_run_as_failed_with_everything_saved(tmp_path):
    mine = "{metric: train/response_length, below: 1000, patience: 3, action: stop}"
    others = "callbacks.alarms.entropy.below=2", "callbacks.alarms.gradient.action=off"
    done = train(tmp_path, f"+callbacks.alarms.short={mine}", *others)
    assert done.returncode == 1
    assert "alarm short: stopping after this update" in done.stdout
    (error,) = commands.said(done.stderr)
    assert error.startswith("error: alarm short: train/response_length is ")
    limit = "below callbacks.alarms.short.below=1000"
    assert f"{limit} in 3 measured updates in a row (policy version 2)" in error
    written = rows(tmp_path / "run")
    assert [(row["alarms/short"], row["alarms/entropy"]) for row in written] == [(0, 0), (0, 0), (1, 0)]
    assert "alarms/gradient" not in written[0]
    ended = manifest(tmp_path / "run")
    assert ended["status"] == "failed" and "alarm short" in ended["error"]
    assert json.loads((tmp_path / "run/summary.json").read_text())["updates"] == 3
    assert list((tmp_path / "run/checkpoints").iterdir()) and list((tmp_path / "run/plots").glob("*.png"))
