r"""Finds the final answer that a response marks as such. Nothing is parsed or evaluated here.

A mark is one of

    \boxed{...}, \fbox{...}   braces balanced, `\{` and `\}` not counted; boxes in a row (`\boxed{1},
                              \boxed{2}` or `\boxed{1}` and `\boxed{2}`) are one answer, joined by commas
    final answer is ...       up to the end of the sentence; a colon may follow
    Answer: ...               up to the end of the sentence or line; if nothing follows on the same line, the
                              next line with text
    #### 42                   GSM8K's: a number, perhaps with a unit; other text makes it a heading

and **the last mark wins**, whichever of these it is: a response that corrects itself means the later answer.
A mark without content does not count, nor does a box that is not closed (the response was cut inside it). A
response without any mark has no answer.
"""

from __future__ import annotations

import re
import sys

MAX_ANSWER_CHARACTERS = 2000  # a longer text is no answer
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
_HASHES = re.compile(r"####[ \t]*([^\n]{1,80})")
_HASH_CONTENT = re.compile(
    r"[$€£]?\s*[-+−]?\$?(?:[0-9][0-9,]*(?:\.[0-9]+)?|\.[0-9]+)(?:/[0-9]+)?\s*(?:\\?%|[^\W\d]+)?\s*\.?\s*"
)
_SPECIAL_TOKEN = re.compile(r"<\|.*")
_HOPE = re.compile(r"\bI hope\b.*", re.IGNORECASE)
_SENTENCE_END = re.compile(r"[.。](?=\s+[A-Z\W]|\s*\Z)")


def final_answer(text: str) -> str | None:
    """Returns the stripped content of the last mark in `text`; None without a mark or if it is too long."""
    text = text[-MAX_SEARCHED_CHARACTERS:]
    marks = [_boxed(text), _hashes(text)]
    if "answer" in text.lower():  # a search that ignores case is slow
        marks += [_stated(_FINAL_ANSWER_IS, text), _stated(_ANSWER, text)]
    _, content = max(filter(None, marks), default=(0, None))
    return content if content is not None and len(content) <= MAX_ANSWER_CHARACTERS else None


def closing_brace(text: str, start: int, end: int = sys.maxsize) -> int | None:
    r"""Returns the index of the brace that closes the one right before `start`, `\{` and `\}` not counted;
    None when `text[:end]` ends first.
    """
    depth = 1
    for brace in _BRACE.finditer(text, start, end):
        depth += {"{": 1, "}": -1}.get(brace.group(), 0)
        if depth == 0:
            return brace.start()
    return None


def _boxed(text: str) -> tuple[int, str] | None:
    """Returns start and content of the last row of boxes; the start is that of the row's last box."""
    contents: list[str] = []
    last_start, row_start = 0, -1
    for start, end, content in _boxes_from_the_end(text):
        if contents and not _one_row(text[end:row_start]):
            break
        if not contents:
            last_start = start
        row_start = start
        if content and (not contents or contents[-1] != content):
            contents.append(content)
    return (last_start, ", ".join(reversed(contents))) if contents else None


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


def _stated(pattern: re.Pattern[str], text: str) -> tuple[int, str] | None:
    """Returns start and content of the last match of `pattern` that a sentence follows."""
    for mark in _last_matches(pattern, text):
        content = _first_sentence(_line_from(text, mark.end()))
        if content:
            return mark.start(), content
    return None


def _hashes(text: str) -> tuple[int, str] | None:
    for mark in _last_matches(_HASHES, text):
        content = _SPECIAL_TOKEN.sub("", mark.group(1))
        if _HASH_CONTENT.fullmatch(content):
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

    A displayed formula (`\[`, `$$`, `\begin`) is returned with all its lines, up to an empty one.
    """
    behind = text[start : start + 2 * MAX_ANSWER_CHARACTERS]
    line, _, rest = behind.partition("\n")
    if _without_decoration(line):
        return line
    paragraph, _, _ = rest.strip().partition("\n\n")
    is_displayed = paragraph.lstrip().startswith(("\\[", "$$", "\\begin"))
    return paragraph if is_displayed else paragraph.partition("\n")[0]


def _first_sentence(text: str) -> str:
    text = _SPECIAL_TOKEN.sub("", _HOPE.sub("", text))
    text = _SENTENCE_END.split(text, maxsplit=1)[0]
    return _without_decoration(text)


def _without_decoration(text: str) -> str:
    text = text.strip().strip("*_").strip()
    return "" if text in {":", ".", "-", "$", "$$", "\\[", "\\("} else text
