"""Scalars in TensorBoard's event files, read with the messages of tensorboard or tensorboardX."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

from bapo_lightning.system.errors import DataError

_MESSAGES = ("tensorboard.compat.proto.event_pb2", "tensorboardX.proto.event_pb2")
_HEADER, _CHECKSUM = struct.Struct("<Q4x"), 4  # length and its checksum; checksum of what follows


def scalars(path: Path) -> Iterator[tuple[int, str, float]]:
    """Yields step, tag and value of each scalar of a file, up to a last record that a kill tore. Raises
    DataError if no package can read it, or it is not an event file.
    """
    event, content, place = _event(path), path.read_bytes(), 0
    while place + _HEADER.size <= len(content):
        (length,) = _HEADER.unpack_from(content, place)
        begin, place = place + _HEADER.size, place + _HEADER.size + length + _CHECKSUM
        if place > len(content):
            return
        try:
            read = event.FromString(content[begin : begin + length])
        except Exception as error:  # of protobuf, whose versions have different types
            raise DataError(f"{path} is not an event file of TensorBoard, or damaged ({error})") from None
        for value in read.summary.value:
            if value.HasField("simple_value"):
                yield read.step, value.tag, float(value.simple_value)
            elif value.HasField("tensor") and len(value.tensor.float_val) == 1:
                yield read.step, value.tag, float(value.tensor.float_val[0])


def _event(path: Path) -> Any:
    for name in _MESSAGES:
        try:
            return import_module(name).Event
        except ImportError:
            continue
    raise DataError(
        f"{path} is TensorBoard's, for which a package is not installed: "
        ".venv/bin/python -m pip install tensorboard"
    )
