"""Writes the policy of a checkpoint as a model folder that transformers and vLLM load.

    python -m bapo_lightning.tools.commands.export CHECKPOINT FOLDER [--dtype bfloat16] [--overwrite]

CHECKPOINT is a run folder (its newest good checkpoint is used) or one of its checkpoints, sharded ones
included. FOLDER gets safetensors, tokenizer, generation configuration and a model card.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, get_args

from annotated_types import Ge, Le

from bapo_lightning.report.progress.display import displayed_phases
from bapo_lightning.runs.command import command, end_with, number_type, parser_of
from bapo_lightning.system.errors import CheckpointError, DataError
from bapo_lightning.system.phases import phase
from bapo_lightning.system.run_folder.config_keys import value_of
from bapo_lightning.system.values import Dtype

if TYPE_CHECKING:
    from torch import Tensor

    from bapo_lightning.modules.policy.policy import Policy
    from bapo_lightning.tools.evaluation.subject import Subject


@command(2, OSError)
def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the command; its exit code is 2 after an error."""
    parser = parser_of("export", __doc__)
    parser.add_argument("checkpoint", metavar="CHECKPOINT", help="run folder, or one of its checkpoints")
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="model folder to make")
    text = "precision of the weights (default: as trained)"
    parser.add_argument("--dtype", choices=get_args(Dtype), help=text)
    text = "size limit of one file (default: %(default)s)"
    size = number_type(Annotated[float, Ge(1e-6), Le(1e6)], "gigabytes")
    parser.add_argument("--shard-gigabytes", type=size, default=5.0, metavar="GB", help=text)
    parser.add_argument("--overwrite", action="store_true", help="replace an existing model")
    parsed = parser.parse_args(arguments)
    start = time.monotonic()
    with displayed_phases():
        text = _export(**vars(parsed))
    print(f"{parsed.folder} holds {text}, written in {time.monotonic() - start:.1f} s")


def _export(
    checkpoint: str, folder: Path, dtype: Dtype | None, shard_gigabytes: float, overwrite: bool
) -> str:
    with phase("loading libraries"):
        import torch

        from bapo_lightning.modules.policy.folder import model_path
        from bapo_lightning.system.run_folder.record import read_manifest, read_rows
        from bapo_lightning.tools.evaluation.subject import find_subject
        from bapo_lightning.tools.export.model_card import model_card
        from bapo_lightning.tools.export.model_folder import (
            GIGABYTE,
            check_target,
            rounding_problem,
            write_model_folder,
        )

    check_target(folder, overwrite)  # before gigabytes are read
    with phase("checking the digests of the checkpoint"):
        subject = find_subject(checkpoint)
    if subject.run is None or subject.checkpoint is None:
        raise DataError(
            f"{checkpoint} is a model already, not a run or a checkpoint; name one like "
            "outputs/<experiment>/<run>"
        )
    run, trained = subject.run, subject.checkpoint.path.parent.parent
    dtype = dtype or value_of(run, "model.dtype")
    print(f"exporting update {subject.checkpoint.update}: {checkpoint}", flush=True)
    with phase("loading the model"):
        weights, policy = policy_weights(subject, dtype)
    with phase("writing weights", policy.num_weights):
        num_weights = write_model_folder(
            folder,
            model_path(value_of(subject.model, "path")),
            weights,
            model_card(run, read_manifest(trained), read_rows(trained), subject.checkpoint.update, dtype),
            getattr(torch, dtype),
            int(shard_gigabytes * GIGABYTE),
            overwrite,
        )
    if problem := rounding_problem(policy.update_kept, dtype):
        print(f"warning: {problem} (--dtype float32)", flush=True)
    return f"{num_weights} weights in {dtype}, policy version {subject.version}"


def policy_weights(subject: Subject, dtype: Dtype) -> tuple[Iterator[tuple[str, Tensor]], Policy]:
    """Returns a checkpoint's weights under the names of files, read one at a time, and their policy. Adapters
    are merged into the loaded model. All are rounded to `dtype`, except what transformers keeps in float32.
    Raises CheckpointError for a checkpoint of another model.
    """
    from bapo_lightning.configuration.sections import Model
    from bapo_lightning.modules.policy.factory import build_policy
    from bapo_lightning.modules.policy.file_names import under_file_names
    from bapo_lightning.modules.policy.folder import model_path
    from bapo_lightning.modules.policy.options import ModelOptions
    from bapo_lightning.rollout.engine import Wanted
    from bapo_lightning.system.precision import exported_dtype
    from bapo_lightning.tools.export.checkpoint_weights import load_checkpoint_weights, policy_state

    assert subject.run is not None and subject.checkpoint is not None
    model = Model.read({**subject.model, "dtype": value_of(subject.run, "model.dtype")})
    options = ModelOptions.of(model, model_path(model.path))
    policy = build_policy(options, temperature=1.0, on_meta=options.lora is None)
    folder = subject.checkpoint.path
    if options.lora is not None:
        load_checkpoint_weights(policy, folder)
        return policy.named_weights(Wanted(dtype=dtype, names="files", is_export=True)), policy

    def stored() -> Iterator[tuple[str, Tensor]]:
        state = policy_state(folder)
        for name, expected in policy.named_weights():  # which holds none itself
            weight = state.get(f"model.{name}")
            if weight is None or weight.shape != expected.shape:
                fault = "is missing" if weight is None else f"has shape {list(weight.shape)}"
                raise CheckpointError(
                    f"{folder} does not fit the model of its run: {name} {fault}, expected "
                    f"{list(expected.shape)}"
                )
            is_float = weight.is_floating_point()
            yield name, weight.to(exported_dtype(policy.model, name, dtype) if is_float else None)

    return under_file_names(policy.model, stored(), policy.file_parts), policy


if __name__ == "__main__":
    end_with(main)
