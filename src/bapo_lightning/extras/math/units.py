r"""Words after a number: units, which change nothing, and words that change it into another number.

`5\text{ apples}` and `5 miles per hour` are 5. `5 million` is 5000000. `5\text{ or six}`, `5\text{ halves}`,
`5\text{ plus one}` and `3\text{ p.m.}` are not plain numbers: something follows that is not a unit.
"""

from __future__ import annotations

SCALES = {
    "dozen": 12, "hundred": 100, "thousand": 10**3, "lakh": 10**5, "million": 10**6, "crore": 10**7,
    "billion": 10**9, "trillion": 10**12, "quadrillion": 10**15,
}  # fmt: skip
_SCALE = rf"(?i:{'|'.join(SCALES)})"
# Directly after the number these are not units; `5 cm squared` and `5 dollars per dozen` have them later.
_NOT_FIRST = (
    r"(?i:and|to|mod|modulo|plus\w*|minus\w*|over|choose|squared|cubed|factorial|divided|multiplied|remainder|base"
    r"|times\w+|times(?=\s+\w)|per\s?cent(?:age)?|pct|[ap]\.?\s?m|double|triple|sqrt|infinity|negative|positive(?!\s)"
    r"|inverse|reciprocal|opposite|conjugate|(?:dozen|hundred|thousand)s|gross|myriads?|point(?=\s*\w)"
    r"|alpha|beta|gamma|delta|theta|lambda|sigma|omega|kilos?|mega|giga|milli|micro|scores?"
    rf"|(?:{'|'.join(SCALES)})s?|(?:third|quarter|fourth|fifth|sixth|seventh|eighth|ninth|tenth"
    r"|eleventh|twelfth|[a-z]{3,5}teenth|[a-z]{3,6}ieth|(?:hundred|thousand|[a-z]{1,7}illion)th)s?)"
)
_NUMBER_WORD = (
    r"(?i:or|than|half|halves|(?:zero|one|two|three|four|five|six|seven|eight|nine|ten|eleven|twelve"
    r"|[a-z]{3,5}teen)(?:e?s)?|twenty|thirty|forty|fifty|sixty|seventy|eighty|ninety)"
)
_NOWHERE = rf"(?:{_NUMBER_WORD}|(?i:but|not|no|if|is|are|was|were|isn't|wrong|answer))"
_END = r"(?![^\W\d_])"  # of a word
CHANGES = rf"(?:{_NOT_FIRST}|{_NUMBER_WORD}){_END}"  # in a sentence, after a number
_UNIT_ONLY = rf"(?!\s*{_NOT_FIRST}{_END})(?![^{{}}\\$,;]*?(?<![^\W_]){_NOWHERE}{_END})"

TEXT_COMMAND = r"\\(?:text|textbf|textit|textrm|textnormal|mathrm|mbox)\s*"
_RAISED = r"(?:\s*\^\s*(?:\{\s*-?[0-9]\s*\}|[0-9]))?"
_UNIT_LETTERS = r"(?:[^{}0-9,;:=<>+?!|\\$%^]|\^(?:-?[0-9]|\{-?[0-9]\})|\\cdot|\\[ ,]){0,80}"
_ONE_UNIT = rf"{TEXT_COMMAND}\{{{_UNIT_ONLY}{_UNIT_LETTERS}\}}{_RAISED}"
# `\text{m}^3\text{/s}`, `\text{km}\cdot\text{h}^{-1}`, `\frac{\text{m}}{\text{s}^2}`
TEXT_UNIT = (
    rf"\s*(?:\\frac\s*\{{\s*{_ONE_UNIT}\s*\}}\s*\{{\s*{_ONE_UNIT}\s*\}}"
    rf"|{_ONE_UNIT}(?:\s*(?:/|\\cdot|\*)?\s*{_ONE_UNIT}){{0,3}})"
)
# A bare word is a unit if it has four letters (`3 ab` stays a product) or is one of these short ones.
_WORD = (
    r"(?:[A-Za-z]{4,}|[cmk]m|[km]?g|ft|in|lbs?|oz|mi|hrs?|mins?|secs?|mph|days?|cups?|men|USD)(?![A-Za-z])"
)
_RATE = r"(?:[cmk]?m|mi|ft|kg|g|[lL])/(?:s|h|hr|min|sec|m|[cm]m)(?![A-Za-z])"
_BARE_UNIT = rf"\s{{1,5}}{_UNIT_ONLY}(?:{_RATE}|{_WORD})(?:\s+[a-z]{{2,}}){{0,2}}(?:\^\{{?[23]\}}?)?"
UNIT = (
    rf"(?:{TEXT_UNIT}|\s*\^\s*\{{?\s*\\circ\s*\}}?(?:\s*[CF])?|\s*\\degree|{_BARE_UNIT}"
    r"|\s*(?:[cmk]m|kg|mph|ft)(?:\^\{?[23]\}?)?)"
)
# `5 million`, `5\text{ million dollars}`
SCALED = (
    rf"(?:\s{{1,5}}(?P<scale>{_SCALE}){_END}(?:{_BARE_UNIT}|{TEXT_UNIT})?"
    rf"|\s*{TEXT_COMMAND}\{{\s*(?P<text_scale>{_SCALE}){_END}(?:\s+{_UNIT_ONLY}{_UNIT_LETTERS})?\s*\}})"
)
