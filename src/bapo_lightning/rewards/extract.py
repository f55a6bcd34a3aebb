r"""Finds the final answer that a response marks as such. Nothing is parsed or evaluated here.

A mark is one of

    \boxed{...}, \fbox{...}     braces balanced, `\{` and `\}` not counted; boxes in a row (`\boxed{1}, \boxed{2}` or `\boxed{1}` and
                                `\boxed{2}`) are one answer, joined by commas
    final answer is ...         up to the end of the sentence; a colon may follow
    Answer: ...                 up to the end of the line, or the next line that holds something when nothing follows on the same one
    #### 42                     GSM8K's: a number, a unit may follow; a heading is none

and **the mark that stands last wins**, whatever its kind: a response that corrects itself means what it says
last. A mark without content does not count, nor does a box that is not closed (the response was cut inside
it). A response without any mark has no answer.
"""

from __future__ import annotations

import re

MAX_ANSWER_CHARACTERS = 2000  # what is longer is no answer
MAX_MARKS = 64  # of one kind that are looked at, from the end: a response may be a flood of them
MAX_SEARCHED_CHARACTERS = 200_000  # at the end of the response

_BOX = re.compile(r"\\(?:boxed|fbox)\s*\{")
_BRACE = re.compile(r"\\.|[{}]", re.DOTALL)
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
    """The content of the last mark in `text`, without spaces around it; None without a mark, or when it is
    longer than an answer is.
    """
    text = text[-MAX_SEARCHED_CHARACTERS:]
    says_answer = "answer" in text.lower()  # a search that ignores case is slow
    marks = [_boxed(text), _hashes(text), *((_final_answer_is(text), _answer(text)) if says_answer else ())]
    found = [mark for mark in marks if mark is not None]
    if not found:
        return None
    _, content = max(found)
    return content if len(content) <= MAX_ANSWER_CHARACTERS else None


def _boxed(text: str) -> tuple[int, str] | None:
    """Place and content of the last row of boxes."""
    contents: list[str] = []
    place, row_start = 0, -1
    for start, end, content in _boxes_from_the_end(text):
        if contents and not _one_row(text[end:row_start]):
            break
        if not contents:
            place = start
        row_start = start
        if content and (not contents or contents[-1] != content):
            contents.append(content)
    return (place, ", ".join(reversed(contents))) if contents else None


def _boxes_from_the_end(text: str) -> list[tuple[int, int, str]]:
    """Start, end and content of closed boxes, the last one first; of nested boxes the inner one."""
    boxes: list[tuple[int, int, str]] = []
    taken_from = len(text)
    for opening in _last_matches(_BOX, text):
        end = _closing_brace(text, opening.end())
        if end is not None and end < taken_from:
            boxes.append((opening.start(), end + 1, text[opening.end() : end].strip()))
            taken_from = opening.start()
    return boxes


def _closing_brace(text: str, start: int) -> int | None:
    """Index of the brace that closes the one right before `start`."""
    depth = 1
    for brace in _BRACE.finditer(text, start, start + MAX_ANSWER_CHARACTERS + 1):
        depth += {"{": 1, "}": -1}.get(brace.group(), 0)
        if depth == 0:
            return brace.start()
    return None


def _one_row(between: str) -> bool:
    """Whether two boxes with `between` between them are parts of one answer."""
    return between == "" or (
        len(between) <= 60
        and _BETWEEN_BOXES.fullmatch(between) is not None
        and _SEPARATES.search(between) is not None
    )


def _final_answer_is(text: str) -> tuple[int, str] | None:
    for mark in _last_matches(_FINAL_ANSWER_IS, text):
        content = _first_sentence(_line_from(text, mark.end()))
        if content:
            return mark.start(), content
    return None


def _answer(text: str) -> tuple[int, str] | None:
    for mark in _last_matches(_ANSWER, text):
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
    """The last `MAX_MARKS` matches, the last one first."""
    matches: list[re.Match[str]] = []
    for match in pattern.finditer(text):
        matches.append(match)
        if len(matches) > 2 * MAX_MARKS:
            del matches[:MAX_MARKS]
    return matches[::-1][:MAX_MARKS]


def _line_from(text: str, start: int) -> str:
    """What follows `start` up to the end of its line; when that is empty, the next lines up to an empty
    one.
    """
    behind = text[start : start + 2 * MAX_ANSWER_CHARACTERS]
    line, _, rest = behind.partition("\n")
    if _without_decoration(line):
        return line
    paragraph, _, _ = rest.strip().partition("\n\n")
    return (
        paragraph if paragraph.lstrip().startswith(("\\[", "$$", "\\begin")) else paragraph.partition("\n")[0]
    )


def _first_sentence(text: str) -> str:
    text = _SPECIAL_TOKEN.sub("", _HOPE.sub("", text))
    text = _SENTENCE_END.split(text, maxsplit=1)[0]
    return _without_decoration(text)


def _without_decoration(text: str) -> str:
    text = text.strip().strip("*_").strip()
    return "" if text in {":", ".", "-", "$", "$$", "\\[", "\\("} else text
