"""Text of an observation for the policy: fields of it in a template, or everything that is informative."""

from __future__ import annotations

import hashlib
import json
import re
from typing import Any

from bapo_lightning.extras.openenv.session import LONGEST_TEXT, Seen
from bapo_lightning.system.peers import PeerFault

_FIELD = re.compile(r"\{([\w.-]+)\}")
ALL = "observation"  # in a template: all of it


def shown(observation: dict[str, Any], template: str | None) -> str:
    """Returns the template with `{field}`, `{field.field}` and `{list.-1.field}` replaced; a missing field is
    an empty text. None, or `{observation}` in a template: the only text that is not empty, or else JSON.
    Raises PeerFault for a text that is too long to be read.
    """
    if template is None:
        text = _all_fields(observation)
    else:
        text = _FIELD.sub(lambda match: _at(observation, match[1]), template)
    if len(text) > LONGEST_TEXT:
        raise PeerFault(f"the world showed {len(text)} characters, more than {LONGEST_TEXT}")
    return text


def digest(seen: Seen) -> str:
    """Digest of an observation, to compare repetitions of a step."""
    text = json.dumps([seen.observation, seen.reward, seen.is_done], sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def _at(observation: dict[str, Any], path: str) -> str:
    if path == ALL and ALL not in observation:
        return _all_fields(observation)
    value: Any = observation
    for name in path.split("."):
        try:
            value = value[int(name)] if isinstance(value, list) else value[name]
        except (KeyError, IndexError, TypeError, ValueError):
            return ""
    return _text(value)


def _all_fields(observation: dict[str, Any]) -> str:
    fields = {name: value for name, value in observation.items() if value not in (None, "", [], {})}
    fields.pop("tool_name", None)  # the policy knows what it called
    return _text(next(iter(fields.values())) if len(fields) == 1 else fields) if fields else ""


def _text(value: Any) -> str:
    if isinstance(value, dict) and isinstance(parts := value.get("content"), list):  # a result of MCP
        value = "\n".join(
            text for part in parts if isinstance(part, dict) and isinstance(text := part.get("text"), str)
        )
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
