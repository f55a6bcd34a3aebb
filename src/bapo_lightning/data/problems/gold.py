r"""The gold answer in a cell of a table.

form             cell                                    gold answer
text             "34", 34, 34.0, ["34"]                  34
behind_marker    "Half of 8 is <<8/2=4>>4\n#### 4"       4       (GSM8K)
last_box         "... so x is $\boxed{\frac{1}{2}}$."    \frac{1}{2}    (solutions of MATH)
json_list        '["34"]'                                34      (SkyWork-OR1)
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

from bapo_lightning.data.problems.cells import UnusableRow, text_of

FORMS = ("text", "behind_marker", "last_box", "json_list")
SEVERAL = ("refuse", "join")
_BOX = re.compile(r"\\(?:boxed|fbox)(?![a-zA-Z])\s*")
_THOUSANDS = re.compile(r"[-+]?[0-9]{1,3}(?:,[0-9]{3})+(?:\.[0-9]+)?")


def gold_answer(cell: Any, form: str, marker: str, several: str) -> str:
    """The gold answer that a cell holds.

    Args:
        cell: value of the answer column.
        form: one of FORMS.
        marker: what stands before the answer, with `behind_marker`; the last one counts.
        several: what a list of several answers means: `refuse` it, or `join` all of them with ", ".

    Raises:
        UnusableRow: there is none.
    """
    if form == "json_list":
        cell = _parsed(cell)
    entries = [text_of(entry) for entry in cell] if isinstance(cell, list) else [text_of(cell)]
    entries = [entry for entry in entries if entry]
    if len(entries) > 1 and several == "refuse":
        raise UnusableRow("several gold answers")
    extract = _EXTRACT.get(form)
    answer = ", ".join(entries if extract is None else [extract(entry, marker) for entry in entries])
    if not answer:
        raise UnusableRow("no gold answer")
    return answer.replace(",", "") if form == "behind_marker" and _THOUSANDS.fullmatch(answer) else answer


def last_box(text: str) -> str | None:
    r"""What the last \boxed or \fbox of a solution holds, braces balanced; `\boxed 5` holds 5. None without
    one.
    """
    boxes = list(_BOX.finditer(text))
    if not boxes:
        return None
    start = boxes[-1].end()
    if text[start : start + 1] != "{":
        return text[start : start + 1].strip() or None
    depth = 0
    for position in range(start, len(text)):
        if text[position] in "{}" and text[position - 1] != "\\":
            depth += 1 if text[position] == "{" else -1
            if depth == 0:
                return text[start + 1 : position].strip()
    return None


def _parsed(cell: Any) -> list[Any]:
    try:
        entries = json.loads(cell)
    except (TypeError, ValueError):
        entries = None
    if not isinstance(entries, list):
        raise UnusableRow("an answer that is no JSON list")
    return entries


def _behind_marker(text: str, marker: str) -> str:
    if marker not in text:
        raise UnusableRow(f"no {marker} in the answer")
    return text.rpartition(marker)[2].strip()


def _from_box(text: str, marker: str) -> str:
    box = last_box(text)
    if box is None:
        raise UnusableRow("no box in the answer")
    return box


_EXTRACT: dict[str, Callable[[str, str], str]] = {"behind_marker": _behind_marker, "last_box": _from_box}
