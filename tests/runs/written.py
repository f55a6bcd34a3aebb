"""What a run wrote, for comparisons of whole runs."""

import json

import torch

TIMES = ("second", "per_s")


def rows(folder, without=TIMES):
    """The metrics of every update, without times and rates."""
    parsed = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{key: row[key] for key in row if not any(part in key for part in without)} for row in parsed]


def manifest(folder):
    return json.loads((folder / "manifest.json").read_text())


def trainer_state(folder, update):
    path = folder / f"checkpoints/update{update:06d}/trainer.ckpt"
    return torch.load(path, weights_only=True)


def weights(folder, update):
    return trainer_state(folder, update)["state_dict"]


def same(one, other):
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    return one == other
