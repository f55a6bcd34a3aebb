"""Reads the policy of a checkpoint outside training: for evaluation and export."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

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
    state: Mapping[str, Any]
    if file.is_dir():
        state = _ShardedState(file)
    else:
        state = torch.load(file, map_location="cpu", mmap=True, weights_only=True)["state_dict"]
    own = [name for name in state if name.startswith(_PREFIX)]
    if not own:
        raise CheckpointError(f"{file} holds no policy: its names are {', '.join(list(state)[:3])}, ...")
    return _Part(state, own)


class _Part(Mapping[str, Tensor]):
    """Entries of a state, without the policy's prefix."""

    def __init__(self, state: Mapping[str, Tensor], names: Sequence[str]) -> None:
        self._state = state
        self._names = {name.removeprefix(_PREFIX): name for name in names}

    def __getitem__(self, name: str) -> Tensor:
        return self._state[self._names[name]]

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


class _ShardedState(Mapping[str, Tensor]):
    """Weights of a sharded checkpoint, each assembled when it is read, without a process group."""

    def __init__(self, folder: Path) -> None:
        self._reader = FileSystemReader(folder)
        entries = self._reader.read_metadata().state_dict_metadata
        self._entries = {
            name.removeprefix(_SHARDED_PREFIX): entry
            for name, entry in entries.items()
            if name.startswith(_SHARDED_PREFIX) and isinstance(entry, TensorStorageMetadata)
        }

    def __getitem__(self, name: str) -> Tensor:
        entry = self._entries[name]
        weight = torch.empty(entry.size, dtype=entry.properties.dtype)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="torch.distributed is disabled")  # as intended
            load({_SHARDED_PREFIX + name: weight}, storage_reader=self._reader, no_dist=True)
        return weight

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)
