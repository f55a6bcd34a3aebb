"""Damages of recorded files: what a disk, an editor or another program may have left of one."""

import json
import math

import yaml

DEEP = b"[" * 100_000
# Of a field: values that nobody wrote.
VALUES = {
    "text": "x", "surrogate": "\ud800", "number": 7, "negative": -1, "fraction": 0.5, "huge": 10**400,
    "large": 1e300, "nan": math.nan, "infinite": math.inf, "true": True, "null": None, "list": ["x"],
    "mapping": {"x": 1}, "empty list": [], "empty mapping": {},
}  # fmt: skip
GONE = "gone"


def of_file(content):
    """name -> bytes of the file instead; None: a folder in its place."""
    return {
        "empty": b"", "halved": content[: len(content) // 2], "zeros": bytes(64),
        "zeros behind": content + bytes(64) + b"\n",
        "list": b"[]\n", "mapping": b"{}\n", "number": b"7\n", "null": b"null\n", "deep": DEEP + b"\n",
        "deep line": content + DEEP + b"\n", "other encoding": content.replace(b"e", b"\xe9", 50),
        "a folder": None,
    }  # fmt: skip


def of_fields(name, content):
    """Yields (field, damage, bytes of the file instead) of JSON, YAML, or the first of JSON lines."""
    if name.endswith(".jsonl"):
        first, _, rest = content.partition(b"\n")
    else:
        first, rest = content, b""
    node = yaml.safe_load(first) if name.endswith(".yaml") else json.loads(first)
    for path in paths(node):
        for damage, value in {**VALUES, GONE: None}.items():
            changed = json.dumps(with_value(node, path, value, damage == GONE)).encode()
            yield ".".join(map(str, path)), damage, changed + b"\n" + rest


def paths(node, path=()):
    """Paths to all values of a node, of lists to the first entry alone."""
    entries = (
        node.items() if isinstance(node, dict) else enumerate(node[:1]) if isinstance(node, list) else ()
    )
    for key, value in entries:
        yield (*path, key)
        yield from paths(value, (*path, key))


def with_value(node, path, value, is_gone):
    """The node with another value at this path."""
    if not path:
        return value
    key, *rest = path
    copy = list(node) if isinstance(node, list) else dict(node)
    if is_gone and not rest:
        del copy[key]
    else:
        copy[key] = with_value(node[key], rest, value, is_gone)
    return copy
