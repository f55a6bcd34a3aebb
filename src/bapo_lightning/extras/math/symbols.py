r"""Characters beyond ASCII as LaTeX: `√10` is `\sqrt{10}`, `x²` is `x^{2}`, `¾` is `\frac{3}{4}`.

If Unicode says what a character stands for (NFKC: wide, mathematical, raised and lowered letters,
fractions), this is used. A digit in a circle or in brackets is not that digit.
"""

from __future__ import annotations

import re
import unicodedata
from functools import cache

_GREEK = re.compile(r"GREEK (SMALL|CAPITAL) LETTER (\w+)")
_COMMANDS = {
    "×": "times", "·": "cdot", "⋅": "cdot", "∙": "cdot", "∞": "infty", "≤": "le", "≥": "ge", "⩽": "le",
    "⩾": "ge", "≦": "le", "≧": "ge", "≠": "ne", "∪": "cup", "∩": "cap", "∈": "in", "∅": "emptyset",
    "⌀": "emptyset", "±": "pm", "∓": "mp", "∨": "lor", "∧": "land", "∖": "setminus", "⌊": "lfloor",
    "⌋": "rfloor", "⌈": "lceil", "⌉": "rceil", "∠": "angle", "⟨": "langle", "⟩": "rangle", "≈": "approx",
    "⋯": "ldots", "…": "ldots", "√": "sqrt", "ϕ": "phi",
}  # fmt: skip
_PLAIN = {
    "−": "-", "–": "-", "‐": "-", "‑": "-", "÷": "/", "∕": "/", "⁄": "/", "∶": ":", "∣": "|", "′": "'",
    "″": "''", "°": r"^{\circ}", "º": r"^{\circ}", "˚": r"^{\circ}",
    **{letter: rf"\mathbb{{{plain}}}" for letter, plain in zip("ℝℤℚℕℂ", "RZQNC", strict=True)},
}  # fmt: skip
_ROOTS = {"√": r"\sqrt", "∛": r"\sqrt[3]", "∜": r"\sqrt[4]"}
_ROOT = re.compile(r"([√∛∜])\s*(?:\(([^()]*)\)|\{([^{}]*)\}|([0-9]+(?:\.[0-9]+)?|[^\W\d_]))")
_FRACTION = re.compile(r"([⁰¹²³⁴-⁹]+)[⁄/]([₀-₉]+)")
_RAISED = re.compile("[⁰¹²³⁴-⁹⁺⁻⁽⁾ⁿⁱᵃ-ᵛˣʸ]+")
_LOWERED = re.compile("[₀-₉₊₋₍₎ₐ-ₓᵢⱼ]+")
_OVERLINE, _DOT = re.compile("(?:[0-9]\u0305)+"), re.compile("([0-9])\u0307")
_TAKEN = ("<font>", "<wide>", "<narrow>", "<noBreak>", "<square>", "<compat>", "<small>")


def plain_characters(text: str) -> str:
    """Returns `text` with digits of any script (`４２`, `٤٢`) and the characters of formulas in ASCII."""
    if text.isascii():
        return text
    text = _OVERLINE.sub(lambda digits: rf"\overline{{{digits[0].replace(chr(0x305), '')}}}", text)
    text = _DOT.sub(r"\\dot{\1}", text)
    text = _FRACTION.sub(lambda parts: rf"\frac{{{_nfkc(parts[1])}}}{{{_nfkc(parts[2])}}}", text)
    text = _RAISED.sub(lambda raised: f"^{{{_nfkc(raised[0])}}}", text)
    text = _LOWERED.sub(lambda lowered: f"_{{{_nfkc(lowered[0])}}}", text)
    for _ in range(2):  # √(2+√3)
        text = _ROOT.sub(lambda root: f"{_ROOTS[root[1]]}{{{root[2] or root[3] or root[4] or ''}}}", text)
    return "".join(character if character.isascii() else _plain(character) for character in text)


@cache
def _plain(character: str) -> str:
    if character in _COMMANDS:
        return rf"\{_COMMANDS[character]} "
    if character in _PLAIN:
        return _PLAIN[character]
    if character.isdecimal():
        return str(unicodedata.decimal(character))
    if character.isspace():
        return " "
    if (letter := _GREEK.fullmatch(unicodedata.name(character, ""))) is not None:
        name = letter[2].replace("LAMDA", "LAMBDA")
        return rf"\{name.lower() if letter[1] == 'SMALL' else name.title()} "
    kind, _, _ = unicodedata.decomposition(character).partition(" ")
    meant = _nfkc(character)
    if kind == "<fraction>":
        top, _, bottom = meant.partition("/")
        return rf"\frac{{{top}}}{{{bottom}}}"
    if kind in _TAKEN and meant != character and not any(map(str.isdigit, meant)):
        return "".join(part if part.isascii() else _plain(part) for part in meant)
    return character


def _nfkc(text: str) -> str:
    return unicodedata.normalize("NFKC", text).replace("⁄", "/").replace("−", "-")
