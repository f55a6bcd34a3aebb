"""Verdicts on the labelled pairs of corpus.jsonl. A pair whose `note` is "convention" is judged by a rule of
docs/rewards.md rather than by its mathematics; one whose note is "known" is right, and not found out.
"""

import json
from collections import Counter
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bapo_lightning.extras.math.notation import clean
from bapo_lightning.extras.math.quick import read_number
from bapo_lightning.types import ScoreStatus

CORPUS = Path(__file__).with_name("corpus.jsonl")
ROWS = [json.loads(line) for line in CORPUS.read_text().splitlines()]


def pairs(rows):
    return [(row["kind"], row["gold"], row["text"]) for row in rows]


@pytest.fixture(scope="module")
def accepted(make_reward):
    """Function that says whether the reward takes a row for right."""
    scores = make_reward().score_texts([row["gold"] for row in ROWS], [row["text"] for row in ROWS])
    found = {(row["gold"], row["text"]): score.status for row, score in zip(ROWS, scores, strict=True)}
    return lambda row: found[row["gold"], row["text"]] is ScoreStatus.CORRECT


def test_no_wrong_answer_is_taken_for_right_but_by_a_documented_rule(accepted):
    taken = [row for row in ROWS if not row["right"] and accepted(row)]
    by_rule = [row for row in ROWS if not row["right"] and row.get("note") == "convention"]
    assert pairs(taken) == pairs(by_rule)


def test_the_right_answers_that_are_missed_are_those_that_are_marked(accepted):
    missed = [row for row in ROWS if row["right"] and not accepted(row)]
    assert pairs(missed) == pairs(row for row in ROWS if row["right"] and "note" in row)


def test_the_corpus_has_many_kinds_and_near_misses():
    kinds = Counter(row["kind"] for row in ROWS)
    wrong = sum(not row["right"] for row in ROWS)
    assert len(ROWS) >= 1000 and len(kinds) >= 25 and min(kinds.values()) >= 4
    assert 0.35 <= wrong / len(ROWS) <= 0.4
    assert len({(row["gold"], row["text"]) for row in ROWS}) == len(ROWS)


digits = st.text("0123456789", min_size=1, max_size=6)


@given(whole=st.integers(0, 999), head=st.text("0123456789", max_size=4), block=digits)
def test_a_repeating_decimal_is_its_fraction_in_every_notation(whole, head, block):
    value = whole + Fraction(int(head or 0), 10 ** len(head))
    value += Fraction(int(block), 10 ** len(head) * (10 ** len(block) - 1))
    middle = rf"\dot{{{block[0]}}}{block[1:-1]}" + (rf"\dot{{{block[-1]}}}" if block[1:] else "")
    barred = "".join(f"{digit}\u0305" for digit in block)
    for repeated in (rf"\overline{{{block}}}", rf"\bar{{{block}}}", f"({block})", middle, barred):
        number = read_number(clean(f"{whole}.{head}{repeated}"))
        assert number is not None and number.value == value and not number.is_decimal


@pytest.mark.parametrize("row", ROWS[:: len(ROWS) // 150], ids=lambda row: row["gold"])
def test_a_cleaned_text_is_clean(row):
    assert clean(clean(row["gold"])) == clean(row["gold"])
