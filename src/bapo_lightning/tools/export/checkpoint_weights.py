"""Reads the policy of a checkpoint outside training: for evaluation and export."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from torch import Tensor
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.checkpoint.state_dict_loader import load

from bapo_lightning.modules.policy.policy import Policy
from bapo_lightning.system.errors import CheckpointError
from bapo_lightning.system.run_folder.checkpoint import TRAINER_FILE

_PREFIX = "policy."  # the policy's name in the training module
LOG_Z = "log_z."  # of the head's weights in the policy
_SHARDED_PREFIX = "state_dict."  # the training module's name in a sharded checkpoint


def load_checkpoint_weights(policy: Policy, folder: Path) -> None:
    """Loads the weights of a verified checkpoint folder into a policy that was built like the run's, with or
    without the head for log Z, which only training needs. Raises CheckpointError if they do not fit.
    """
    state = policy_state(folder)
    wanted = [name for name in state if policy.log_z is not None or not name.startswith(LOG_Z)]
    try:
        policy.load_state_dict({name: state[name] for name in wanted})
    except RuntimeError as error:
        raise CheckpointError(f"{folder} does not fit the model of its run ({error})") from None


def policy_state(folder: Path) -> Mapping[str, Tensor]:
    """Returns the policy of a checkpoint, on the CPU; tensors are read when used. Raises CheckpointError."""
    file = folder / TRAINER_FILE
    read: Callable[[str], Tensor]
    if file.is_dir():
        reader = FileSystemReader(file)
        entries = {
            name.removeprefix(_SHARDED_PREFIX): entry
            for name, entry in reader.read_metadata().state_dict_metadata.items()
            if name.startswith(_SHARDED_PREFIX) and isinstance(entry, TensorStorageMetadata)
        }
        names, read = [*entries], partial(_assembled, reader, entries)
    else:
        state = torch.load(file, map_location="cpu", mmap=True, weights_only=True)["state_dict"]
        names, read = [*state], state.__getitem__
    policy_names = [name.removeprefix(_PREFIX) for name in names if name.startswith(_PREFIX)]
    if not policy_names:
        raise CheckpointError(f"{file} holds no policy: its names are {', '.join(names[:3])}, ...")
    return _PolicyState(policy_names, read)


@dataclass(frozen=True, eq=False)
class _PolicyState(Mapping[str, Tensor]):
    """Tensors of the policy by their names in it, each read from the whole state when it is used."""

    names: Sequence[str]
    read: Callable[[str], Tensor]

    def __getitem__(self, name: str) -> Tensor:
        return self.read(_PREFIX + name)

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    def __len__(self) -> int:
        return len(self.names)


def _assembled(reader: FileSystemReader, entries: Mapping[str, TensorStorageMetadata], name: str) -> Tensor:
    """Assembles one weight of a sharded checkpoint, without a process group."""
    weight = torch.empty(entries[name].size, dtype=entries[name].properties.dtype)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")  # as intended
        load({_SHARDED_PREFIX + name: weight}, storage_reader=reader, no_dist=True)
    return weight
