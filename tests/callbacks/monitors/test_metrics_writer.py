import json

import torch

from bapo_lightning.callbacks.loggers.run_logger import MetricsFile
from bapo_lightning.callbacks.writers import to_floats


def test_tensors_become_numbers_and_undefined_values_are_left_out():
    metrics = {
        "b": torch.tensor(2), "a": 1.5, "nan": torch.tensor(float("nan")), "inf": float("inf"),
        "flag": torch.tensor(True),
    }  # fmt: skip
    assert to_floats(metrics) == {"a": 1.5, "b": 2.0, "flag": 1.0}


def test_an_update_is_one_row(tmp_path):
    file = MetricsFile(tmp_path)
    for step in range(2):
        file.log_metrics({"progress/version": step + 1, "train/loss": 0.5}, step)
    written = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert written == [{"step": step, "progress/version": step + 1, "train/loss": 0.5} for step in range(2)]
