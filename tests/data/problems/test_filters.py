"""What each filter removes, with which words, and that every removal is in the account."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from typing import Any, get_type_hints

import pytest
from pydantic import TypeAdapter, ValidationError

from bapo_lightning.data.problems.columns import ColumnMapping
from bapo_lightning.data.problems.filters import Difficulty, Duplicates, Length, Scripts, apply_filters
from bapo_lightning.data.problems.mixture import mixture
from bapo_lightning.data.problems.overlap import LeakageFilter
from bapo_lightning.data.problems.reasoning_gym import reasoning_gym_problems
from bapo_lightning.data.problems.selection import account_lines, select
from bapo_lightning.data.problems.table import ProblemSet, problem_table
from bapo_lightning.errors import DataError
from bapo_lightning.types import Problem


def problem(name: str, prompt: str = "", answer: str = "1", difficulty: float | None = None) -> Problem:
    return Problem(name, prompt or f"What is {name}?", answer, metadata={"difficulty": difficulty})


def test_lengths_outside_the_bounds_are_removed() -> None:
    problems = [
        problem("a", "x" * 3),
        problem("b", "x" * 4),
        problem("c", "x" * 9),
        problem("d", "x" * 10),
        problem("e", "xxxxx", "12345"),
    ]
    assert Length(4, 9, 4)(problems, {}) == {
        "a": "shorter than 4 characters",
        "d": "longer than 9 characters",
        "e": "answer longer than 4 characters",
    }
    assert Length()(problems, {}) == {}


def test_difficulties_outside_the_range_and_unknown_ones_are_removed_and_the_ends_are_kept() -> None:
    problems = [problem(str(value), difficulty=value) for value in (0, 1, 15, 16, None)]
    assert Difficulty(1, 15)(problems, {}) == {
        "0": "easier than 1",
        "16": "harder than 15",
        "None": "difficulty unknown",
    }
    assert Difficulty(low=1)(problems, {}) == {"0": "easier than 1", "None": "difficulty unknown"}
    assert Difficulty()(problems, {}) == {}
    with pytest.raises(
        DataError,
        match=r"no problem of data.train a difficulty; name its column: data.train.mapping.difficulty=COLUMN",
    ):
        Difficulty(1, 15)([problem("a"), problem("b")], {})


def test_the_first_of_problems_that_ask_the_same_is_kept() -> None:
    problems = [
        problem("a", r"Find $\dfrac{1}{2}+ x$."),
        problem("b", r"find  \(\frac 1 2 + x\)"),
        problem("c", r"Find $\frac{1}{2} + x$.", "2"),
        problem("d", r"Find $\frac{1}{2} - x$."),
        problem("e", "Find 5!"),
        problem("f", "Find 5"),
        problem("g", "Find 0.5"),
        problem("h", "Find 05"),
        problem("i", "Find x. [asy]draw(A);[/asy]"),
        problem("j", "Find x. [asy]draw(B);[/asy]"),
    ]
    assert Duplicates()(problems, {}) == {"b": "duplicate", "c": "duplicate with another answer"}
    different = "duplicates with different answers"
    assert Duplicates("remove_all")(problems, {}) == {"a": different, "b": different, "c": different}
    assert Duplicates("remove_all")(problems[:2], {}) == {"b": "duplicate"}


def test_problems_in_other_scripts_are_removed_and_latex_is_no_script() -> None:
    problems = [
        problem("english", r"Let $\alpha = π/2$; find $\sin\alpha$ for naïve Gödel."),
        problem("chinese", r"已知 $\frac{x}{y} = 2$, 求 $\frac{x+y}{x-y}$"),
        problem("numbers", "1 + 1 = "),
        problem("russian", "Найдите сумму"),
    ]
    assert Scripts(["LATIN", "GREEK"])(problems, {}) == {
        "chinese": "another script",
        "russian": "another script",
    }
    assert Scripts(["CYRILLIC"], max_foreign=0.0)(problems, {}) == {
        "english": "another script",
        "chinese": "another script",
    }
    assert Scripts()(problems, {}) == {}


def test_a_filter_sees_what_the_ones_before_it_have_left() -> None:
    problems = [
        problem("a", "same", difficulty=9),
        problem("b", "same", difficulty=1),
        problem("c", "other", difficulty=1),
    ]
    filtered = apply_filters(problems, {"difficulty": Difficulty(high=5), "duplicates": Duplicates()}, {})
    assert ([kept.id for kept in filtered.kept], filtered.counts) == (["b", "c"], {"harder than 5": 1})
    filtered = apply_filters(problems, {"duplicates": Duplicates(), "difficulty": Difficulty(high=5)}, {})
    assert ([kept.id for kept in filtered.kept], filtered.counts) == (
        ["c"],
        {"duplicate": 1, "harder than 5": 1},
    )
    assert [gone.id for gone in filtered.removed["harder than 5"]] == ["a"]


def test_filters_that_leave_nothing_are_an_error_with_the_counts() -> None:
    with pytest.raises(DataError, match=r"leave none of the 2 problems of data.train \(2 harder than 0\)"):
        apply_filters(
            [problem("a", difficulty=1), problem("b", difficulty=2)], {"difficulty": Difficulty(high=0)}, {}
        )


def encode(item: Problem) -> array[int]:
    return array("i", range(len(item.prompt)))


def test_the_account_tells_where_every_row_has_gone() -> None:
    first = ProblemSet(
        [problem(f"x/{index}", "a" * (index + 1)) for index in range(6)],
        "hub/x, split train",
        9,
        {"no gold answer": 3},
    )
    second = [problem("y/0", "a"), problem("y/1", "bbb")]
    held_out = ProblemSet(
        [problem(f"v/{index}", "c" * (2 * index + 1)) for index in range(4)], "hub/v, split test", 4, {}
    )
    chosen = select(
        mixture({"x": first, "y": second}, {"x": 3, "y": 1}),
        {"v": held_out},
        {"duplicates": Duplicates()},
        encode,
        4,
        3,
    )
    assert [kept.id for kept in chosen.train] == ["x/0", "x/1", "x/2", "x/3", "y/1"]
    assert [item.id for item in chosen.overlong] == ["x/4", "x/5"]
    assert [item.id for item in chosen.validation["v"]] == ["v/0", "v/1"]
    train = chosen.account["train"]
    assert (train["read"], train["removed"], train["kept"]) == (8, {"duplicate": 1, "prompt too long": 2}, 5)
    assert train["shares"] == {"x": 0.75, "y": 0.25}
    assert account_lines(chosen.account) == [
        "train: 5 problems of the 8 read; left out: 1 duplicate, 2 prompt too long",
        "  of them x, 75% of the draws: 4 problems of the 6 read from hub/x, split train (9 rows); left "
        "out: 3 no gold answer",
        "  of them y, 25% of the draws: 1 problems of the 2 read",
        "validation v: 2 problems of the 4 read from hub/v, split test; left out: 1 beyond "
        "scale.validation_problems, 1 prompt too long",
    ]


def of(target: Callable[..., Any], option: str) -> TypeAdapter[Any]:
    return TypeAdapter(get_type_hints(target, include_extras=True)[option])


@pytest.mark.parametrize(
    ("target", "option", "fits", "refused"),
    [
        (ColumnMapping, "answer_form", "last_box", "boxed"),
        (ColumnMapping, "several_answers", "join", "first"),
        (problem_table, "unusable", "leave_out", "drop"),
        (problem_table, "size", 3, 0),
        (problem_table, "limit", None, -1),
        (mixture, "weights", {"a": 0.5}, {"a": 0}),
        (mixture, "weights", None, {"a": "much"}),
        (Duplicates, "on_conflict", "remove_all", "first"),
        (Length, "max_chars", None, 0),
        (Scripts, "max_foreign", 0.0, -0.1),
        (LeakageFilter, "min_share", 1.0, 1.1),
        (LeakageFilter, "ngram", 8, 0),
        (reasoning_gym_problems, "split", "train", "test"),
        (reasoning_gym_problems, "validation_share", 0.25, 0),
    ],
)
def test_an_option_takes_what_fits_and_refuses_the_rest(target, option, fits, refused) -> None:
    assert of(target, option).validate_python(fits) == fits
    with pytest.raises(ValidationError):
        of(target, option).validate_python(refused)
