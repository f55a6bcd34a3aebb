"""How numbers in text are read: the table of the module, and more."""

from __future__ import annotations

import pytest

from bapo_lightning.rewards.numbers import (
    canonical,
    first_number,
    last_number,
    same_number,
    whole_number_text,
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1,234", "1234"),
        ("it is 12,345,678.", "12345678"),
        ("1,234.50", "1234.50"),
        ("1,23", "23"),
        ("(1, 2)", "2"),
        ("1,2345", "2345"),
        ("12345,678", "678"),
        ("-7", "-7"),
        ("3 - 10 = -7", "-7"),
        ("$-7$", "-7"),
        ("\N{MINUS SIGN}7", "-7"),
        ("**-7**", "-7"),
        ("9-7", "7"),
        ("9 - 7", "7"),
        ("(2)-7", "7"),
        ("covid-19", "19"),
        ("7.", "7"),
        ("7.0", "7.0"),
        ("=.5", ".5"),
        ("wait...5", "5"),
        ("+7", "7"),
        ("007", "007"),
        ("$7", "7"),
        ("7%", "7"),
        ("1/2", "2"),
        ("1e5", "5"),
        ("seven", None),
        ("", None),
        ("-", None),
        ("\N{ARABIC-INDIC DIGIT SEVEN}", None),
        ("9" * 64, "9" * 64),
        ("9" * 65, None),
    ],
)
def test_the_last_number_of_a_text(text, expected) -> None:
    assert last_number(text) == expected


def test_the_first_number_of_a_text() -> None:
    assert [first_number(text) for text in (" 18\nso 3", "-4 or 5", "none")] == ["18", "-4", None]


def test_a_text_that_is_one_number_and_nothing_else() -> None:
    assert [whole_number_text(text) for text in (" 1,234 ", "-7", "7 apples", "1/2", "")] == [
        "1234",
        "-7",
        None,
        None,
        None,
    ]


@pytest.mark.parametrize(
    ("first", "second", "same"),
    [
        ("7.0", "7", True),
        ("007", "7", True),
        ("-0", "0", True),
        (".10", "0.1", True),
        ("0.333", ".3333", False),
        ("1" * 64, "1" * 63 + "2", False),
    ],
)
def test_numbers_are_compared_exactly(first, second, same) -> None:
    assert same_number(first, second) is same


def test_equal_numbers_have_one_form() -> None:
    assert [canonical(text) for text in ("7.0", "007", "-0.0", ".10", "100", "-1.50")] == [
        "7",
        "7",
        "0",
        "0.1",
        "100",
        "-1.5",
    ]


def test_a_long_hostile_text_is_read_in_linear_time() -> None:
    assert last_number("1,111" * 200_000 + " -" * 200_000) == "111"  # a quadratic reader takes hours
