"""Removes decoration around an answer: code marks, quotes, HTML, emoji, end tokens."""

from __future__ import annotations

import re
import unicodedata

_BARE = re.compile(
    r"[\w$(\[{+.-](?:.*[\w$)\]}%.])?|\\[\w(\[{].*[\w$)\]}%.]", re.DOTALL | re.ASCII
)  # most answers
_ROUNDS = 8  # marks inside marks
_FIRST_PICTURE = 0x2190  # symbols before it have a meaning: `°`
_END_TOKEN = re.compile(r"\s*(?:<\|[^|<>]{1,40}\|>|<｜[^｜<>]{1,40}｜>|</s>|<eos>|<end_of_turn>)\Z")
_AROUND = tuple(
    re.compile(pattern, re.DOTALL | re.IGNORECASE)
    for pattern in (
        r"```(?:[a-z]+(?=\s*\n))?((?:(?!```).)*)```",
        r"``((?:(?!``|'').)*)(?:``|'')",
        r"`([^`]*)`",
        r"==((?:(?!==).)*)==",
        r"\*\*((?:(?!\*\*).)*)\*\*",
        r"__((?:(?!__).)*)__",
        r"“([^“”]*)”",
        r"‘([^‘’]*)’",
        r"«([^«»]*)»",
        r'"([^"]*)"',
        r"'([^']*)'",
        r"<(-?[0-9]+(?:[./][0-9]+)?)>",  # <1,2> is a vector
        r'\\"((?:(?!\\").)*)\\"',
        r"<(?P<tag>b|i|em|strong|u|code|tt|span|p|mark|center|div|font|big)(?:\s[^<>]{0,80})?>"
        r"(?P<inside>(?:(?!</?(?P=tag)[\s>]).)*)</(?P=tag)>",
    )
)


def undecorated(text: str) -> str:
    """Returns `text` without marks around all of it, and without invisible or meaningless ends."""
    if _BARE.fullmatch(text) is not None and not text.startswith("_"):
        return text
    for _ in range(_ROUNDS):
        before = text
        text = _END_TOKEN.sub("", _without_ends(text))
        for around in _AROUND:
            if (match := around.fullmatch(text)) is not None:
                text = match["inside"] if "inside" in match.groupdict() else match[1]
        if text == before:
            break
    return text


def _without_ends(text: str) -> str:
    start, end = 0, len(text)
    while start < end and _means_nothing(text[start]):
        start += 1
    while end > start and _means_nothing(text[end - 1]):
        end -= 1
    return text[start:end]


def _means_nothing(character: str) -> bool:
    """Whether this is white space, a format character (a zero-width space), or a picture."""
    if character.isascii():
        return character.isspace()
    category = unicodedata.category(character)
    is_picture = category in ("So", "Sk") and ord(character) >= _FIRST_PICTURE
    return character.isspace() or category == "Cf" or is_picture or "\ufe00" <= character <= "\ufe0f"
