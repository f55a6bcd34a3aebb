"""What a policy reads of an observation: fields of it in a template, or all that says something."""

from __future__ import annotations

import hashlib
import json
import re
from typing import Any

from bapo_lightning.environments.openenv.session import Seen

_FIELD = re.compile(r"\{([\w.-]+)\}")
ALL = "observation"  # in a template: all of it


def shown(observation: dict[str, Any], template: str | None) -> str:
    """Returns the template with `{field}`, `{field.field}` and `{list.-1.field}` replaced; a missing field is
    an empty text. None, or `{observation}` in a template: the only text that is not empty, or else JSON.
    """
    if template is None:
        return _all(observation)
    return _FIELD.sub(lambda match: _at(observation, match[1]), template)


def digest(seen: Seen) -> str:
    """Name of what was seen, to compare a step with itself."""
    text = json.dumps([seen.observation, seen.reward, seen.is_done], sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def _at(observation: dict[str, Any], path: str) -> str:
    if path == ALL and ALL not in observation:
        return _all(observation)
    value: Any = observation
    for name in path.split("."):
        try:
            value = value[int(name)] if isinstance(value, list) else value[name]
        except (KeyError, IndexError, TypeError, ValueError):
            return ""
    return _text(value)


def _all(observation: dict[str, Any]) -> str:
    told = {name: value for name, value in observation.items() if value not in (None, "", [], {})}
    told.pop("tool_name", None)  # the policy knows what it called
    return _text(next(iter(told.values())) if len(told) == 1 else told) if told else ""


def _text(value: Any) -> str:
    if isinstance(value, dict) and isinstance(parts := value.get("content"), list):  # a result of MCP
        value = "\n".join(part["text"] for part in parts if isinstance(part, dict) and "text" in part)
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
