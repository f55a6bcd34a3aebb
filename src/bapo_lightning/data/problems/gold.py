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
from typing import Any, Literal

from bapo_lightning.data.problems.cells import UnusableRow, text_of
from bapo_lightning.rewards.math.extract import closing_brace

AnswerForm = Literal["text", "behind_marker", "last_box", "json_list"]
SeveralAnswers = Literal["refuse", "join"]
_BOX = re.compile(r"\\(?:boxed|fbox)(?![a-zA-Z])\s*")
_THOUSANDS = re.compile(r"[-+]?[0-9]{1,3}(?:,[0-9]{3})+(?:\.[0-9]+)?")


def gold_answer(cell: Any, form: AnswerForm, marker: str, several: SeveralAnswers) -> str:
    """Returns the gold answer that a cell holds.

    Args:
        cell: value of the answer column.
        form: layout of the cell, see the table above.
        marker: text before the answer in form `behind_marker`; its last occurrence counts.
        several: whether to `refuse` a list of several answers or to `join` them with ", ".

    Raises:
        UnusableRow: there is none.
    """
    if form == "json_list":
        cell = _parsed(cell)
    entries = [text_of(entry) for entry in cell] if isinstance(cell, list) else [text_of(cell)]
    entries = [entry for entry in entries if entry]
    if len(entries) > 1 and several == "refuse":
        raise UnusableRow("several gold answers")
    answer = ", ".join(_extracted(entry, form, marker) for entry in entries)
    if not answer:
        raise UnusableRow("no gold answer")
    return answer.replace(",", "") if form == "behind_marker" and _THOUSANDS.fullmatch(answer) else answer


def last_box(text: str) -> str | None:
    r"""Returns the content of the last \boxed{} or \fbox{}, braces balanced; `\boxed 5` holds 5. None without
    a box, or when it is not closed.
    """
    boxes = list(_BOX.finditer(text))
    if not boxes:
        return None
    start = boxes[-1].end()
    if text[start : start + 1] != "{":
        return text[start : start + 1].strip() or None
    end = closing_brace(text, start + 1)
    return None if end is None else text[start + 1 : end].strip()


def _parsed(cell: Any) -> list[Any]:
    try:
        entries = json.loads(cell)
    except (TypeError, ValueError):
        entries = None
    if not isinstance(entries, list):
        raise UnusableRow("an answer that is no JSON list")
    return entries


def _extracted(text: str, form: AnswerForm, marker: str) -> str:
    if form == "behind_marker":
        if marker not in text:
            raise UnusableRow(f"no {marker} in the answer")
        return text.rpartition(marker)[2].strip()
    if form == "last_box":
        box = last_box(text)
        if box is None:
            raise UnusableRow("no box in the answer")
        return box
    return text
