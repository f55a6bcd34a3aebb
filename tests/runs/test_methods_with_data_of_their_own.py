"""Methods that need more than an objective: runs that are resumed end with the weights and the records of
one that was left alone, to the bit.
"""

import json
import re
import shutil

import pytest
import torch
from tests.commands import run_command

METHODS = {
    "luffy": ("algorithm=luffy", "regime=partial", "scale.partial_tokens=4"),
    "ghpo": ("algorithm=ghpo", "regime=partial", "scale.partial_tokens=4"),
    "spear": ("algorithm=spear", "regime=spear"),
    "spear_turns": (
        "algorithm=spear_turns",
        "regime=spear",
        "algorithm.rules.sample_filter.repeats=2",
        "algorithm.rules.sample_filter.ngram=2",
    ),
    "pipo": ("algorithm=pipo", "regime=pipo", "algorithm.stages.replay.window=2"),
    "aepo": ("algorithm=aepo", "regime=replay", "regime.epochs=1"),
    "erc": ("algorithm=erc", "regime=partial", "scale.partial_tokens=4"),
    "rover": ("algorithm=rover", "regime=reuse", "correction=truncated_is"),
    "flowrl": ("algorithm=flowrl", "regime=reuse"),
}
EXPERIMENTS = {"spear_turns": "sums"}  # of the others the quickstart
BATCHES = {"spear_turns": 6}  # until it shows what it does; the others need 4
SETTINGS = (
    "debug=fast", "callbacks.validation.every=0",
    "callbacks.checkpoint.every=5", "callbacks.checkpoint.keep=9",
)  # fmt: skip
# What shows that the method did something: a pattern of rollouts.jsonl or metrics.jsonl.
SIGNS = {
    "luffy": '"origin": "expert"',
    "ghpo": '"hint": 0.5',
    "spear": '"origin": "replayed"',
    "spear_turns": '"rollout/filtered_samples": [1-9]',
    "pipo": '"origin": "replayed"',
    "aepo": '"origin": "tempered"',
    "erc": '"time/proximal_seconds"',
    "rover": '"origin": "replayed"',
    "flowrl": '"origin": "replayed"',
}


def train(folder, name, *overrides):
    chosen = f"experiment={EXPERIMENTS.get(name, 'quickstart')}", *SETTINGS, *METHODS[name]
    own = f"scale.num_rollout_batches={BATCHES.get(name, 4)}", f"run_folder={folder}"
    done = run_command("bapo_lightning.cli.train", *chosen, *own, *overrides)
    assert done.returncode == 0, done.stderr
    return done.stdout


def rows(folder):
    parsed = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [
        {key: value for key, value in row.items() if "second" not in key.rpartition("_")[2]} for row in parsed
    ]


def weights(folder):
    newest = max(folder.glob("checkpoints/update*"))
    return torch.load(newest / "trainer.ckpt", weights_only=True)["state_dict"]


@pytest.mark.slow
@pytest.mark.parametrize("name", METHODS)
def test_a_run_goes_on_as_if_it_had_never_stopped(name, tmp_path):
    whole, resumed = tmp_path / "whole", tmp_path / "resumed"
    train(whole, name)
    assert re.search(
        SIGNS[name], (whole / "rollouts.jsonl").read_text() + (whole / "metrics.jsonl").read_text()
    )
    shutil.copytree(whole, resumed)
    *_, kept, lost, last = sorted(resumed.glob("checkpoints/update*"))
    for checkpoint in (lost, last):  # as if it had been killed in the middle
        shutil.rmtree(checkpoint)
    manifest = json.loads((resumed / "manifest.json").read_text())
    (resumed / "manifest.json").write_text(json.dumps(manifest | {"status": "interrupted"}))
    assert f"at update {int(kept.name.removeprefix('update'))}" in train(resumed, name, f"resume={resumed}")
    for file in ("ledger.jsonl", "rollouts.jsonl"):
        assert (resumed / file).read_text() == (whole / file).read_text()
    assert [row["step"] for row in rows(whole)] == list(range(4 * BATCHES.get(name, 4)))
    one, other = weights(whole), weights(resumed)
    assert all(torch.equal(one[key], other[key]) for key in one)
    differing = {
        key
        for row, again in zip(rows(whole), rows(resumed), strict=True)
        for key in row
        if row[key] != again.get(key)
    }
    assert not {key for key in differing if not key.startswith(("sync/", "time/"))}
