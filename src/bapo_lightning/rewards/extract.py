r"""Finds the final answer that a response marks as such. Nothing is parsed or evaluated here.

A mark is one of

    \boxed{...}, \fbox{...}   braces balanced, `\{` and `\}` not counted; boxes in a row (`\boxed{1},
                              \boxed{2}` or `\boxed{1}` and `\boxed{2}`) are one answer, joined by commas
    final answer is ...       up to the end of the sentence; a colon may follow
    Answer: ...               up to the end of the sentence or line; if nothing follows on the same line, the
                              next line with text; a heading `**Final Answer**` needs no colon
    <answer>...</answer>      R1-Zero's
    #### 42                   GSM8K's: a number, perhaps with a unit; other text makes it a heading

and **the last mark wins**, whichever of these it is: a response that corrects itself means the later answer.
So a mark inside `<answer>` wins over the tag. A mark without content does not count, nor does a box or tag
that is not closed (the response was cut inside it), nor anything in thoughts: before `</think>`, or after a
`<think>` that is not closed. A response without any mark has no answer.
"""

from __future__ import annotations

import re
import sys

from bapo_lightning.rewards.decoration import undecorated

MAX_ANSWER_CHARACTERS = 2000  # a longer text is not an answer
MAX_MARKS = 64  # looked at per pattern, from the end: a response may be a flood of marks
MAX_SEARCHED_CHARACTERS = 200_000  # at the end of the response

_BRACE = re.compile(r"\\.|[{}]", re.DOTALL)
_BOX = re.compile(r"\\(?:boxed|fbox)\s*\{")
_BETWEEN_BOXES = re.compile(
    r"(?:\s[a-z]{2,}(?=\s+(?:and|or)\b|,))?(?:[\s$,;&]|\\[()\[\],;:!]|\\q?quad|\\text\s*\{\s*(?:and|or)\s*\}|\band\b|\bor\b"
    r"|\\?[A-Za-z]+(?:_\{?\w{1,8}\}?)?(?:\([a-z]\))?\s*=)*+"
)
_SEPARATES = re.compile(r"[,;&]|\band\b|\bor\b")
_FINAL_ANSWER_IS = re.compile(r"final\s+answer\b[^.\n:]{0,100}?\bis\b[*_\s]*:?[*_]*", re.IGNORECASE)
_ANSWER = re.compile(r"\banswer[*_]*\s*[:：][*_]*", re.IGNORECASE)
_HEADING = re.compile(
    r"^[#*_> \t]{0,20}(?:final[ \t]+|(?<=[#*_])|(?<=[#*_] ))answer[*_ \t]*$", re.IGNORECASE | re.MULTILINE
)
_TAG = re.compile(r"<answer>((?:(?!<answer>).){1,4000}?)</answer>", re.IGNORECASE | re.DOTALL)
_TAG_END = re.compile(r"</answer>.*", re.IGNORECASE | re.DOTALL)
_HASHES = re.compile(r"####[ \t]*([^\n]{1,80})")
_HASH_MATH = re.compile(r"\$([^$]*)\$|\\\((.*)\\\)")
_HASH_FRACTION = re.compile(r"-?\\[dt]?frac\s*(?:\{-?[0-9]{1,20}\}|[0-9])\s*(?:\{[0-9]{1,20}\}|[0-9])")
_HASH_CONTENT = re.compile(
    r"[$€£]?\s*[-+−]?\$?(?:[0-9][0-9,]*(?:\.[0-9]+)?|\.[0-9]+)(?:/[0-9]+)?\s*(?:\\?%|[^\W\d]+)?\s*\.?\s*"
)
_SPECIAL_TOKEN = re.compile(r"<\|.*")
_THOUGHT, _END_OF_THOUGHT = "<think>", "</think>"
_HOPE = re.compile(r"\bI hope\b.*", re.IGNORECASE)
# `- 13` and `- $13$` are items of a list; `-13` and a formula without dollars have a sign.
_LIST_MARK = re.compile(r"\A[\s>]*[-–—•▪◦‣]\s+(?=[0-9$*`]|\\\()")
_BOLD = re.compile(r"(?<![\w)*])\*\*([^*]+)\*\*(?![\w(*])")
_SENTENCE_END = re.compile(r"[.。](?=\s+[A-Z\W]|\s*\Z)")


def final_answer(text: str) -> str | None:
    """Returns the stripped content of the last mark in `text`; None without a mark or if it is too long."""
    text = behind_thoughts(text[-MAX_SEARCHED_CHARACTERS:])
    box = _boxed(text)
    marks = [box and box[::2], _hashes(text)]
    lower = text.lower()
    if "answer" in lower:  # a search that ignores case is slow
        inside = (0, 0) if box is None else box[:2]
        patterns = (_FINAL_ANSWER_IS, _ANSWER, _HEADING)[
            : 3 if "answer\n" in lower or "answer*" in lower else 2
        ]
        marks += [_stated(pattern, text, inside) for pattern in patterns]
        marks += [_tagged(text)] if "</answer>" in lower else []
    _, content = max(filter(None, marks), default=(0, None))
    return content if content is not None and len(content) <= MAX_ANSWER_CHARACTERS else None


def behind_thoughts(text: str) -> str:
    """Returns the part of `text` after its last `</think>` and before a `<think>` that is not closed."""
    if _END_OF_THOUGHT in text:
        text = text.rpartition(_END_OF_THOUGHT)[2]
    return text.partition(_THOUGHT)[0]


def closing_brace(text: str, start: int, end: int = sys.maxsize) -> int | None:
    r"""Returns the index of the brace that closes the one before `start`; None if `text[:end]` has none."""
    depth = 1
    for brace in _BRACE.finditer(text, start, end):
        depth += {"{": 1, "}": -1}.get(brace.group(), 0)
        if depth == 0:
            return brace.start()
    return None


def _boxed(text: str) -> tuple[int, int, str] | None:
    """Returns start, end and content of the last row of boxes; start and end belong to its last box."""
    contents: list[str] = []
    last_start, last_end, row_start = 0, 0, -1
    for start, end, content in _boxes_from_the_end(text):
        if contents and not _one_row(text[end:row_start]):
            break
        if not contents:
            last_start, last_end = start, end
        row_start = start
        if content and (not contents or contents[-1] != content):
            contents.append(content)
    return (last_start, last_end, ", ".join(reversed(contents))) if contents else None


def _boxes_from_the_end(text: str) -> list[tuple[int, int, str]]:
    """Returns start, end and content of closed boxes, the last one first; of nested ones, the inner one."""
    boxes: list[tuple[int, int, str]] = []
    taken_from = len(text)
    for opening in _last_matches(_BOX, text):
        end = closing_brace(text, opening.end(), opening.end() + MAX_ANSWER_CHARACTERS + 1)
        if end is not None and end < taken_from:
            boxes.append((opening.start(), end + 1, text[opening.end() : end].strip()))
            taken_from = opening.start()
    return boxes


def _one_row(between: str) -> bool:
    return between == "" or (
        len(between) <= 60
        and _BETWEEN_BOXES.fullmatch(between) is not None
        and _SEPARATES.search(between) is not None
    )


def _tagged(text: str) -> tuple[int, str] | None:
    for mark in _last_matches(_TAG, text):
        if content := _without_decoration(mark[1]):
            return mark.start(), content
    return None


def _stated(pattern: re.Pattern[str], text: str, box: tuple[int, int]) -> tuple[int, str] | None:
    """Returns start and content of the last match of `pattern`, outside `box`, that a sentence follows."""
    for mark in _last_matches(pattern, text):
        content = _first_sentence(_TAG_END.sub("", _line_from(text, mark.end())))
        if content and not box[0] < mark.start() < box[1]:
            return mark.start(), content
    return None


def _hashes(text: str) -> tuple[int, str] | None:
    for mark in _last_matches(_HASHES, text):
        content = undecorated(_TAG_END.sub("", _SPECIAL_TOKEN.sub("", mark[1])))
        if (formula := _HASH_MATH.fullmatch(content)) is not None:
            content = (formula[1] or formula[2] or "").strip()
        if _HASH_CONTENT.fullmatch(content) or _HASH_FRACTION.fullmatch(content):
            return mark.start(), content.strip().rstrip(".")
    return None


def _last_matches(pattern: re.Pattern[str], text: str) -> list[re.Match[str]]:
    matches: list[re.Match[str]] = []
    for match in pattern.finditer(text):
        matches.append(match)
        if len(matches) > 2 * MAX_MARKS:
            del matches[:MAX_MARKS]
    return matches[::-1][:MAX_MARKS]


def _line_from(text: str, start: int) -> str:
    r"""Returns the rest of the line from `start`; if it is empty, the next line with text.

    A displayed formula (`\[`, `$$`, `\begin`) is returned with all its lines, up to an empty line.
    """
    behind = text[start : start + 2 * MAX_ANSWER_CHARACTERS]
    line, _, rest = behind.partition("\n")
    if _without_decoration(line):
        return line
    if rest.lstrip(" >\n").startswith("```"):
        block, fence, _ = rest.partition("```")[2].partition("```")
        return f"```{block}{fence}"
    paragraph, _, _ = rest.strip().partition("\n\n")
    is_displayed = paragraph.lstrip().startswith(("\\[", "$$", "\\begin"))
    return paragraph if is_displayed else paragraph.partition("\n")[0]


def _first_sentence(text: str) -> str:
    text = _SPECIAL_TOKEN.sub("", _HOPE.sub("", text))
    text = _SENTENCE_END.split(text, maxsplit=1)[0]
    return _without_decoration(_LIST_MARK.sub("", text))


def _without_decoration(text: str) -> str:
    text = undecorated(undecorated(_BOLD.sub(r"\1", text.strip().lstrip(">"))).strip("*_"))
    return "" if text in {":", ".", "-", "$", "$$", "\\[", "\\("} else text
