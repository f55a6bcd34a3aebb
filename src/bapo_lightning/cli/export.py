"""A checkpoint as a model folder: `python -m bapo_lightning.cli.export CHECKPOINT FOLDER [--dtype bfloat16]
[--overwrite]`.

CHECKPOINT is a run folder (its newest good checkpoint) or one of its checkpoints, sharded ones included.
FOLDER gets safetensors, tokenizer, generation configuration and a model card; transformers and vLLM load it.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from bapo_lightning.errors import BapoLightningError, CheckpointError, DataError

if TYPE_CHECKING:
    from torch import Tensor

    from bapo_lightning.modules.export.safetensors_shards import WeightSpec
    from bapo_lightning.runs.evaluation.subject import Subject

DTYPES = ("float32", "bfloat16", "float16")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit code: 0, or 2 with one line on what went wrong."""
    parsed = _parser().parse_args(arguments)
    start = time.monotonic()
    try:
        text = export(
            parsed.checkpoint, parsed.folder, parsed.dtype, parsed.shard_gigabytes, parsed.overwrite
        )
    except (BapoLightningError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(f"{parsed.folder} holds {text}, written in {time.monotonic() - start:.1f} s")
    return 0


def export(
    checkpoint: str,
    target: Path,
    dtype: str | None = None,
    shard_gigabytes: float = 5.0,
    overwrite: bool = False,
) -> str:
    """Write the folder; returns in words what it holds.

    Raises:
        BapoLightningError: no good checkpoint, or no room for the folder.
    """
    import torch

    from bapo_lightning.modules.export.model_card import model_card
    from bapo_lightning.modules.export.model_folder import GIGABYTE, check_target, write_model_folder
    from bapo_lightning.modules.policy.folder import model_path
    from bapo_lightning.run_folder.record import read_manifest, read_rows
    from bapo_lightning.runs.evaluation.subject import find_subject

    check_target(target, overwrite)  # before gigabytes are read
    subject = find_subject(checkpoint)
    if subject.run is None or subject.checkpoint is None:
        raise DataError(
            f"{checkpoint} is a model already, not a run or a checkpoint; name one like "
            "outputs/<experiment>/<run>"
        )
    folder, kept = subject.checkpoint.path.parent.parent, dtype or subject.run["model"]["dtype"]
    specs, weights = policy_weights(subject)
    card = model_card(subject.run, read_manifest(folder), read_rows(folder), subject.checkpoint.update, kept)
    path = model_path(subject.model["path"])
    write_model_folder(
        target, path, specs, weights, card, getattr(torch, kept), int(shard_gigabytes * GIGABYTE), overwrite
    )
    return f"{subject.description}: {len(specs)} weights in {kept}"


def policy_weights(subject: Subject) -> tuple[list[WeightSpec], Iterator[tuple[str, Tensor]]]:
    """Weights of a checkpoint under their Hugging Face names: what they are, and one after another. Adapters
    are merged into the model, which is loaded for that; without them only one weight at a time is in memory.

    Raises:
        CheckpointError: the checkpoint is not one of this model.
    """
    from bapo_lightning.callbacks.hf_export import weight_specs
    from bapo_lightning.modules.export.checkpoint_weights import load_checkpoint_weights, policy_state
    from bapo_lightning.modules.policy.factory import build_policy
    from bapo_lightning.modules.policy.folder import model_path
    from bapo_lightning.modules.policy.options import ModelOptions

    assert subject.run is not None and subject.checkpoint is not None
    node = {**subject.model, "dtype": subject.run["model"]["dtype"]}
    options = ModelOptions.of(node, model_path(node["path"]))
    policy = build_policy(options, temperature=1.0, on_meta=options.lora is None)
    specs = weight_specs(policy)
    if options.lora is not None:
        load_checkpoint_weights(policy, subject.checkpoint.path)
        return specs, policy.named_weights()
    state, folder = policy_state(subject.checkpoint.path), subject.checkpoint.path
    missing = [spec.name for spec in specs if f"model.{spec.name}" not in state]
    if missing:
        raise CheckpointError(
            f"{folder} does not fit the model of its run: it lacks {', '.join(missing[:3])}"
        )
    return specs, ((spec.name, state[f"model.{spec.name}"]) for spec in specs)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m bapo_lightning.cli.export", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("checkpoint", metavar="CHECKPOINT", help="run folder, or one of its checkpoints")
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="model folder to make")
    parser.add_argument("--dtype", choices=DTYPES, help="of the weights (default: as trained)")
    parser.add_argument(
        "--shard-gigabytes",
        type=float,
        default=5.0,
        metavar="GB",
        help="of one file at most (default: %(default)s)",
    )
    parser.add_argument("--overwrite", action="store_true", help="replace a model that is there")
    return parser


if __name__ == "__main__":
    sys.exit(main())
