"""Runs that are resumed end with the weights and the records of one that was left alone, to the bit."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import torch
from tests.commands import run_command

SETTINGS = (
    "debug=fast", "callbacks.validation.every=0",
    "callbacks.checkpoint.every=5", "callbacks.checkpoint.keep=9",
)  # fmt: skip
PARTIAL = "regime=partial", "scale.partial_tokens=4"


def rows(folder: Path) -> list[dict[str, Any]]:
    parsed = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{key: row[key] for key in row if "second" not in key.rpartition("_")[2]} for row in parsed]


def weights(folder: Path) -> dict[str, torch.Tensor]:
    newest = max(folder.glob("checkpoints/update*"))
    return torch.load(newest / "trainer.ckpt", weights_only=True)["state_dict"]


def check_resumed_run(
    folder: Path, sign: str, *overrides: str, experiment: str = "quickstart", batches: int = 4
) -> None:
    """Checks a run. `sign` shows that the method did something: a pattern of rollouts.jsonl or metrics.jsonl;
    `batches` are enough for that.
    """

    def train(run: Path, *more: str) -> str:
        own = f"scale.num_rollout_batches={batches}", f"run_folder={run}"
        chosen = f"experiment={experiment}", *SETTINGS, *overrides
        done = run_command("bapo_lightning.cli.train", *chosen, *own, *more)
        assert done.returncode == 0, done.stderr
        return done.stdout

    whole, resumed = folder / "whole", folder / "resumed"
    train(whole)
    assert re.search(sign, (whole / "rollouts.jsonl").read_text() + (whole / "metrics.jsonl").read_text())
    shutil.copytree(whole, resumed)
    *_, kept, lost, last = sorted(resumed.glob("checkpoints/update*"))
    for checkpoint in (lost, last):  # as if it had been killed in the middle
        shutil.rmtree(checkpoint)
    manifest = json.loads((resumed / "manifest.json").read_text())
    (resumed / "manifest.json").write_text(json.dumps(manifest | {"status": "interrupted"}))
    assert f"at update {int(kept.name.removeprefix('update'))}" in train(resumed, f"resume={resumed}")
    for file in ("ledger.jsonl", "rollouts.jsonl"):
        assert (resumed / file).read_text() == (whole / file).read_text()
    assert [row["step"] for row in rows(whole)] == list(range(4 * batches))
    one, other = weights(whole), weights(resumed)
    assert all(torch.equal(one[key], other[key]) for key in one)
    pairs = zip(rows(whole), rows(resumed), strict=True)
    differing = {key for row, again in pairs for key in row if row[key] != again.get(key)}
    assert not {key for key in differing if not key.startswith(("sync/", "time/"))}
