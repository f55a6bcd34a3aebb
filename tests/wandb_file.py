"""Reads an offline W&B run back: records of protobuf in the format of LevelDB's log, in blocks of 32 KiB."""

import json
import struct

from wandb.proto.wandb_internal_pb2 import Record

BLOCK = 32768
FULL, FIRST, MIDDLE, LAST = 1, 2, 3, 4


def records(path):
    data, position, parts, found = path.read_bytes(), 7, b"", []
    while position + 7 <= len(data):
        if BLOCK - position % BLOCK < 7:
            position += BLOCK - position % BLOCK
            continue
        _, length, kind = struct.unpack("<IHB", data[position : position + 7])
        if kind not in (FULL, FIRST, MIDDLE, LAST):
            break
        parts += data[position + 7 : position + 7 + length]
        position += 7 + length
        if kind in (FULL, LAST):
            found.append(parts)
            parts = b""
    return found


def history(path):
    parsed = [Record.FromString(data) for data in records(path)]
    items = [record.history.item for record in parsed if record.WhichOneof("record_type") == "history"]
    return [
        {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in row} for row in items
    ]


def run_record(path):
    """Group, tags and configuration of the run, as W&B last got each."""
    group, tags, config = "", [], {}
    for record in map(Record.FromString, records(path)):
        kind = record.WhichOneof("record_type")
        if kind == "run":
            group, tags = record.run.run_group or group, list(record.run.tags) or tags
        update = record.run.config if kind == "run" else record.config if kind == "config" else None
        for item in update.update if update is not None else ():
            config[item.key or "/".join(item.nested_key)] = json.loads(item.value_json)
    return group, tags, config
