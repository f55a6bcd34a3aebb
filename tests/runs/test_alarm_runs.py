"""Alarms, the watchdog and the correction in real runs; some with an engine that lies as real ones do: it
reports log-probs from before the temperature.
"""

import json

import pytest
from tests import commands
from tests.runs.written import manifest, rows

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


def test_a_correction_sees_the_whole_fresh_batch_and_the_weights_it_enters_training_with(tmp_path):
    honest = "rollout.temperature=1.6", "callbacks.alarms.mismatch.action=stop"
    done = train(tmp_path, "correction=truncated_is", "scale.num_rollout_batches=2", *honest)
    assert done.returncode == 0 and "alarm " not in done.stdout + done.stderr, done.stderr
    written = rows(tmp_path / "run", without=())
    assert [row["alarms/mismatch"] for row in written] == [0] * 16
    assert [index for index, row in enumerate(written) if "mismatch/kl" in row] == [0, 8]
    assert max(written[0]["mismatch/abs_logp_diff_max"], written[8]["mismatch/abs_logp_diff_max"]) < 1e-4
    for row in written:
        assert row["correction/effective_sample_size"] == pytest.approx(1, abs=1e-4)
        assert row["correction/masked_fraction"] == row["correction/truncated_fraction"] == 0
    assert written[0]["time/proximal_seconds"] > 0 and "time/proximal_seconds" not in written[1]


def test_an_alarm_of_ones_own_stops_a_run_as_failed_with_everything_saved(tmp_path):
    mine = "{metric: train/response_length, below: 1000, patience: 3, action: stop}"
    done = train(
        tmp_path,
        f"+callbacks.alarms.short={mine}",
        "callbacks.alarms.entropy.below=2",
        "callbacks.alarms.gradient.action=off",
    )
    assert done.returncode == 1
    assert "alarm short: stopping after this update" in done.stdout
    (error,) = done.stderr.splitlines()
    assert error.startswith("error: alarm short: train/response_length is ")
    assert (
        "below callbacks.alarms.short.below=1000 in 3 measured updates in a row (policy version 2)" in error
    )
    written = rows(tmp_path / "run")
    assert [(row["alarms/short"], row["alarms/entropy"]) for row in written] == [(0, 0), (0, 0), (1, 0)]
    assert "alarms/gradient" not in written[0]
    ended = manifest(tmp_path / "run")
    assert ended["status"] == "failed" and "alarm short" in ended["error"]
    assert json.loads((tmp_path / "run/summary.json").read_text())["updates"] == 3
    assert list((tmp_path / "run/checkpoints").iterdir()) and list((tmp_path / "run/plots").glob("*.png"))


def test_an_alarm_that_warns_lets_the_run_end_well_and_the_watchdog_shows_where_it_was_slow(tmp_path):
    done = train(tmp_path, "callbacks.alarms.entropy.below=2", "callbacks.watchdog.minutes=1e-4")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("warning: alarm entropy: policy/entropy is ") == 1
    assert [row["alarms/entropy"] for row in rows(tmp_path / "run")] == [0, 0, 0, 0, 1, 2, 3, 4]
    log = (tmp_path / "run/watchdog.log").read_text()
    assert "nothing has happened for" in log and "(most recent call first)" in log and "runs/train.py" in log
    assert "warning: nothing has happened for" in done.stderr
    assert manifest(tmp_path / "run")["status"] == "finished"
