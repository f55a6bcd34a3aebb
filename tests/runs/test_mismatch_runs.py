"""Alarm and correction in real runs, with an engine that lies as real ones do: it reports log-probs from
before the temperature.
"""

import json

import pytest
from tests import commands

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
LYING = [
    "rollout.engine._target_=raw_engine.RawLogprobsEngine",
    "rollout.temperature=1.6",
    "rollout.weight_sync.tolerance=100",
]


def train(folder, *overrides):
    (folder / "raw_engine.py").write_text(LYING_ENGINE)
    return commands.train(f"run_folder={folder / 'run'}", *overrides, cwd=folder)


def rows(folder):
    return [json.loads(line) for line in (folder / "run/metrics.jsonl").read_text().splitlines()]


def status(folder):
    return json.loads((folder / "run/manifest.json").read_text())["status"]


@pytest.mark.slow
def test_an_engine_that_reports_another_temperature_is_called_out_and_training_goes_on(tmp_path):
    done = train(tmp_path, *LYING, "scale.num_rollout_batches=2")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("warning: alarm mismatch: mismatch/abs_logp_diff_mean is") == 1
    written = rows(tmp_path)
    assert [row["alarms/mismatch"] for row in written] == [1] * 8 + [2] * 8
    assert written[0]["mismatch/abs_logp_diff_mean"] > 0.1
    assert written[0]["mismatch/logp_diff_mean"] > 0.05, (
        "what the engine reports cannot be what it samples from"
    )
    assert status(tmp_path) == "finished"


@pytest.mark.slow
def test_an_honest_engine_at_that_temperature_raises_no_alarm(tmp_path):
    done = train(tmp_path, "rollout.temperature=1.6", "callbacks.alarms.mismatch.action=stop")
    assert done.returncode == 0 and "alarm " not in done.stdout + done.stderr
    assert [row["alarms/mismatch"] for row in rows(tmp_path)] == [0] * 8


@pytest.mark.slow
def test_an_alarm_can_stop_the_run_with_everything_saved(tmp_path):
    done = train(tmp_path, *LYING, "callbacks.alarms.mismatch.action=stop")
    assert done.returncode == 1
    assert (
        "error: alarm mismatch: mismatch/abs_logp_diff_mean is" in done.stderr
        and "Traceback" not in done.stderr
    )
    assert status(tmp_path) == "failed"
    (row,) = rows(tmp_path)
    assert row["alarms/mismatch"] == 1
    assert (tmp_path / "run/checkpoints/update000001/trainer.ckpt").is_file() and (
        tmp_path / "run/summary.json"
    ).is_file()


def test_a_correction_sees_the_whole_fresh_batch_and_the_weights_it_enters_training_with(tmp_path):
    done = train(tmp_path, "correction=truncated_is", "scale.num_rollout_batches=2")
    assert done.returncode == 0, done.stderr
    written = rows(tmp_path)
    assert [index for index, row in enumerate(written) if "mismatch/kl" in row] == [0, 8]
    assert max(written[0]["mismatch/abs_logp_diff_max"], written[8]["mismatch/abs_logp_diff_max"]) < 1e-4
    assert all(row["correction/effective_sample_size"] == pytest.approx(1, abs=1e-4) for row in written)
    assert all(
        row["correction/masked_fraction"] == row["correction/truncated_fraction"] == 0 for row in written
    )
    assert written[0]["time/proximal_seconds"] > 0 and "time/proximal_seconds" not in written[1]


@pytest.mark.slow
def test_with_a_lying_engine_the_ratio_is_still_1_at_age_0_and_the_weight_takes_up_the_difference(tmp_path):
    done = train(tmp_path, *LYING, "correction=masked_is")
    assert done.returncode == 0, done.stderr
    first, *later = rows(tmp_path)
    assert first["train/clip_fraction"] == 0
    assert first["correction/weight_mean"] > 1.02
    assert all(row["correction/effective_sample_size"] < 0.999 for row in [first, *later])
