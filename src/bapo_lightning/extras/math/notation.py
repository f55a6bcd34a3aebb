r"""One notation per symbol, so that equal texts are equal, and LaTeX that the grammar of `algebra` reads.

It removes everything that changes how an answer looks but not what it says: fonts, sizes, skips, phantoms,
marks around it. Repeating decimals in any notation become the fractions that they are.
"""

from __future__ import annotations

import re
from fractions import Fraction

from bapo_lightning.extras.math.symbols import plain_characters
from bapo_lightning.extras.math.texts import TEXT, number_in_words
from bapo_lightning.extras.math.units import CHANGES
from bapo_lightning.rewards.decoration import undecorated
from bapo_lightning.rewards.extract import closing_brace

_WRAPPERS = tuple(
    re.compile(pattern, re.DOTALL)
    for pattern in (
        r"\$\$([^$]*)\$\$",
        r"\$([^$]*)\$",
        r"\\\(((?:(?!\\\)).)*)\\\)",
        r"\\\[((?:(?!\\\]).)*)\\\]",
        r"\\(?:boxed|fbox|text|textbf|textrm|textit|textnormal|mathrm|mbox|displaystyle|emph|textsf|texttt"
        r"|underbrace|ensuremath)\s*\{([^{}]*)\}",
        r"\*\*([^*]*)\*\*",
        r"`([^`]*)`",
        r"\\begin\{(?:aligned|align\*?|gathered|split|equation\*?)\}((?:(?!\\\\|\\begin).)*)"
        r"\\end\{(?:aligned|align\*?|gathered|split|equation\*?)\}",
    )
)
_SPELT = re.compile(r"\\(?:text|mathrm)[a-z]*\s*\{\s*[a-z]{2,3}\s*\}")  # `\text{ab}` is not a product
_GROUP = r"\{(?:[^{}]|\{[^{}]*\})*\}"
_DECORATION = (
    r"\\(?:(?:underline|boldsymbol|mathbf|mathsf|mathtt|mathit|emph|textsf|texttt|ensuremath|bm|bf|rm|it|sf|tt)"
    r"(?![a-zA-Z])|(?:text)?color\s*\{[^{}]*\})"
)
_DECORATED = re.compile(rf"{_DECORATION}\s*\{{([^{{}}]*)\}}")  # \boldsymbol{5}, \color{red}{5}
_NOTHING_SEEN = re.compile(
    rf"\\(?:[hv]?phantom|[hv]space\*?)\s*{_GROUP}|\\(?:left|right)\s*\.|(?<![A-Za-z}}])\{{\}}|\\hfill"
)
_SPACING = re.compile(
    r"\\(?:left|right|big|Big|bigl|bigr|limits|tiny|small|normalsize|large|Large|LARGE|huge|Huge"
    r"|(?:display|text|script)style)(?![a-zA-Z])"
    rf"|{_DECORATION}|(?<!\\)\\[!,;: ]|~|\\q?quad(?![a-zA-Z])"
)
_THIN_SPACE = re.compile(r"(?<=[0-9])(?:\\,|\\ |\{,\}|,\\!|,\\,)\s*(?=[0-9]{3}(?![0-9]))")
_FRACTION_COMMAND = re.compile(r"\\[dtc]frac(?![a-zA-Z])")
_LETTER_FRACTION = re.compile(r"\\frac\s*(\\(?!sqrt|left|text|math)[a-zA-Z]+)\s*([0-9a-zA-Z]|(?=\{))")
_ROMAN = re.compile(
    r"(?:\\(?:mathrm|operatorname|text|textrm|mathit|mathsf|rm)\s*(?:\{\s*([ei])\s*\}|\s([ei])(?![a-zA-Z]))"
    r"|\{\s*\\rm\s+([ei])\s*\})"
)
_REALS = re.compile(r"\\(?:mathbf|Bbb|bf|mathds)\s*(?:\{([RQZ])\}|\s([RQZ])(?![a-zA-Z]))")
_FUNCTION = re.compile(
    r"\\(?:operatorname\*?|mathrm)\s*\{(sin|cos|tan|cot|sec|csc|arc(?:sin|cos|tan)|ln|log|exp)\}"
)
_DOTS = re.compile(
    r"\\[cd]dots(?![a-zA-Z])|\\dots[cbmio]?(?![a-zA-Z])|(?<=,)\s*\.\.\.(?=,)|(?<=, )\.\.\.(?=,)"
)
_SYNONYMS = {
    r"\lbrace": r"\{", r"\rbrace": r"\}", r"\lbrack": "[", r"\rbrack": "]", r"\langle": "(", r"\rangle": ")",
    r"\vee": r"\lor ", r"\wedge": r"\land ", r"\cr": r"\\ ", r"\hline": " ", r"\varnothing": r"\emptyset ",
    r"\backslash": r"\setminus ", r"\prime": "'", r"\lvert": "|", r"\rvert": "|",
}  # fmt: skip
_SYNONYM = re.compile(rf"({'|'.join(map(re.escape, _SYNONYMS))})(?![a-zA-Z])\s*")
_ROW_SKIP = re.compile(r"\\\\\s*\[[^\[\]]{1,10}\]")
_LAST_ROW = re.compile(r"\\\\\s*(?=\\end)")
_LABEL = re.compile(
    r"\A\s*(?:\\(?:text|textbf|mathrm)\s*\{\s*)?(?:(?:the\s+)?(?:final\s+)?answer(?:\s+is)?\s*:?|is|there\s+(?:is|are))\s*\}\s*(?=\S)",
    re.IGNORECASE,
)
_INTRODUCTION = re.compile(
    r"\A(?:about|approximately|exactly|precisely|roughly|around|equals|just|only|so|(?:it|[a-zA-Z])\s+is),?"
    r"\s+(?=[-$\\0-9.])",
    re.IGNORECASE,
)
_NOTE = re.compile(
    rf"(?<=[0-9$}}!])\s+\((?!\s*(?:{CHANGES}|or|and|mod|wrong|if))"
    r"(?:not\b[^()]*|[A-Za-z][A-Za-z' .-]{2,80})\)\Z",
    re.IGNORECASE,
)
_SAID_TWICE = re.compile(r"([^()\[\]]{1,40}?)\s*[(\[]([^()\[\]]{1,40})[)\]]")
_ARTICLE = re.compile(r"(?:the|an?|there (?:is|are)|it has)\s+(?=\w)", re.IGNORECASE)
# Expressions that may be in words or in symbols.
_MEANINGS = {
    r"\emptyset": r"no (?:real )?(?:solutions?|roots?)|none|(?:empty|null) set|\\\{\s*\\\}",
    "dne": r"(?:limit )?does not exist",
    "infinitely many": r"infinitely many solutions|infinite(?: number of)? solutions|infinite(?: number)?",
    r"\infty": r"(?:(?:positive|plus) |\+\s*)?(?:infinity|\\infty)",
    r"-\infty": r"(?:negative|minus) (?:infinity|\\infty)",
    r"\mathbb{R}": r"(?:(?:all|any|set of(?: all)?) )?real(?: number)?s?",
}  # fmt: skip
_MEANING = re.compile("|".join(f"({words})" for words in _MEANINGS.values()), re.IGNORECASE)
_REPEATING = re.compile(
    r"(?<![\w.}])(?<![0-9] )(?P<whole>[0-9]{0,30})\.(?P<head>[0-9]{0,30}?)(?:"
    r"\\(?:overline|bar)\s*(?:\{\s*(?P<bar>[0-9]{1,30})\s*\}|(?P<short>[0-9]))"
    r"|\((?P<round>[0-9]{1,30})\)"
    r"|\\dot\s*\{?(?P<first>[0-9])\}?(?:(?P<middle>[0-9]{0,30})\\dot\s*\{?(?P<last>[0-9])\}?)?"
    r"|(?:(?P<digit>[0-9])(?P=digit){2,30}|(?P<block>[0-9]{2,12}?)(?P=block){1,30})\s*(?:\.\.\.|\\[lc]?dots\b)"
    r")(?![0-9.])"
)


def clean(text: str) -> str:
    """Returns `text` with one notation per symbol and without spacing commands and marks around it."""
    if text.isascii() and text.isdigit():
        return text
    text = plain_characters(undecorated(text))
    if "." in text:
        text = _REPEATING.sub(_fraction, text)
    if "(" in text or "[" in text:
        text = _number_once(_NOTE.sub("", text))
    if "\\" in text or "{" in text:
        text = _clean_latex(text)
    if "..." in text:
        text = _DOTS.sub(r"\\ldots ", text)
    if ";" in text and "," not in text:
        text = text.replace(";", ",")
    return _meaning(unwrapped(_INTRODUCTION.sub("", text.replace("~", " "))))


def _number_once(text: str) -> str:
    """Returns the number that a text gives in digits and, in brackets, in words or the other way round."""
    if (match := _SAID_TWICE.fullmatch(text)) is None:
        return text
    in_words = [number_in_words(side) for side in match.groups()]
    said = [word or side.strip("$*! ") for word, side in zip(in_words, match.groups(), strict=True)]
    return said[0] if in_words.count(None) == 1 and said[0] == said[1] else text


def _meaning(text: str) -> str:
    if not text or len(text) > 40 or text[0].isdigit():
        return text
    if (number := number_in_words(TEXT.sub(r"\1", text))) is not None:
        return number
    match = _MEANING.fullmatch(_ARTICLE.sub("", text, count=1))
    return text if match is None else tuple(_MEANINGS)[(match.lastindex or 1) - 1]


def _clean_latex(text: str) -> str:
    text = _SYNONYM.sub(lambda match: _SYNONYMS[match[1]], _NOTHING_SEEN.sub(" ", text))
    text = _ROMAN.sub(lambda name: f" {name[1] or name[2] or name[3]} ", text)
    text = _REALS.sub(lambda name: rf"\\mathbb{{{name[1] or name[2]}}}", text)
    text = _FUNCTION.sub(r"\\\1 ", _LABEL.sub("", text))
    if "\\begin" in text:
        text = _LAST_ROW.sub("", _ROW_SKIP.sub(r"\\\\ ", text))
    text = _SPACING.sub(" ", _DECORATED.sub(r" \1 ", _THIN_SPACE.sub(",", text)))
    text = text.replace("{,}", ",").replace("{:}", ":")
    text = _DOTS.sub(r"\\ldots ", text)
    text = _FRACTION_COMMAND.sub(r"\\frac", text).replace(r"\%", "%")
    return _LETTER_FRACTION.sub(r"\\frac{\1}{\2}", text).replace("{}{", "{")


def unwrapped(text: str) -> str:
    """Returns `text` without a full stop, or dollars, brackets, boxes and braces around all of it."""
    for _ in range(8):
        before = text
        text = text.strip() if text.endswith(("\\.", "\\,", "\\;")) else text.strip().rstrip(".,;").strip()
        text = text.rstrip("\\ ")
        for wrapper in _WRAPPERS:
            match = wrapper.fullmatch(text)
            if match is not None and _SPELT.fullmatch(text) is None:
                text = match[1].replace("&", "") if text.startswith("\\begin") else match[1]
        if text.startswith("{") and closing_brace(text, 1) == len(text) - 1:
            text = text[1:-1]
        if text == before:
            return text
    return text


def _fraction(number: re.Match[str]) -> str:
    """Returns the fraction that a repeating decimal is."""
    part = number.groupdict(default="")
    block = part["bar"] + part["short"] + part["round"] + part["digit"] + part["block"]
    block += part["first"] + part["middle"] + part["last"]
    head = part["head"]
    repeated = Fraction(int(head + block) - int(head or 0), 10 ** len(head) * (10 ** len(block) - 1))
    value = int(part["whole"] or 0) + repeated
    return str(value) if value.denominator == 1 else rf"\frac{{{value.numerator}}}{{{value.denominator}}}"
