import json
from dataclasses import replace

import torch
from tests.builders import group, module, random_policy, rollout

from bapo_lightning.callbacks.loggers.metrics_file import MetricsFile
from bapo_lightning.callbacks.monitors.metrics_writer import to_floats
from bapo_lightning.callbacks.monitors.monitor import Update
from bapo_lightning.callbacks.monitors.training import TrainingMonitor
from bapo_lightning.data.batches.batch import collate
from bapo_lightning.modules.bound_rules import FixedBounds
from bapo_lightning.modules.token_table import TokenTable
from bapo_lightning.objectives.bounds import BoundSearch


def test_tensors_become_numbers_and_undefined_values_are_left_out():
    metrics = {
        "b": torch.tensor(2),
        "a": 1.5,
        "nan": torch.tensor(float("nan")),
        "inf": float("inf"),
        "flag": torch.tensor(True),
    }
    assert to_floats(metrics) == {"a": 1.5, "b": 2.0, "flag": 1.0}


def test_an_update_is_one_row(tmp_path):
    file = MetricsFile(tmp_path)
    for step in range(2):
        file.log_metrics({"progress/version": step + 1, "train/loss": 0.5}, step)
    written = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert written == [{"step": step, "progress/version": step + 1, "train/loss": 0.5} for step in range(2)]


def test_reward_is_the_verdict_and_shaped_reward_what_advantages_see():
    shaped = group("p", [rollout([1], [2, 3], [-1.0, -1.0])] * 2, [1.0, 0.0], [1.0, -1.0])
    samples = tuple(replace(sample, reward=sample.reward - 0.5) for sample in shaped.samples)
    batch = collate(
        [replace(shaped, samples=samples)], {"rollout/num_samples": 2.0, "rollout/num_tokens": 4.0}
    )
    flat = torch.zeros(4)
    tokens = TokenTable(flat, flat, flat + 1, flat, flat, flat, flat + 1, flat + 0.25)
    search = BoundSearch(torch.tensor(0.8), torch.tensor(1.2), torch.tensor(0.5), torch.tensor(True))
    updater = module(random_policy(), FixedBounds(0.8, 1.2))
    updater.last_learning_rate = 0.25
    metrics = TrainingMonitor().measure(Update(0, 0, tokens, [search], batch, updater, {}))
    assert metrics["train/learning_rate"] == 0.25
    assert (metrics["train/reward"], metrics["train/shaped_reward"]) == (0.5, 0.0)
    assert (metrics["progress/samples"], metrics["progress/tokens"]) == (2, 4)
    assert metrics["train/response_length_positive"] == metrics["train/response_length_negative"] == 2
