"""What each filter removes, with which words, and that every removal is in the account."""

from array import array
from typing import get_type_hints

import pytest
from pydantic import TypeAdapter, ValidationError

from bapo_lightning.data.problems.columns import ColumnMapping, ProblemSet
from bapo_lightning.data.problems.filters import Difficulty, Duplicates, Length, Scripts, apply_filters
from bapo_lightning.data.problems.mixture import mixture
from bapo_lightning.data.problems.overlap import LeakageFilter
from bapo_lightning.data.problems.reasoning_gym import reasoning_gym_problems
from bapo_lightning.data.problems.selection import account_lines, select
from bapo_lightning.data.problems.table import problem_table
from bapo_lightning.system.errors import DataError
from bapo_lightning.types import Problem

NAMES = "abcdefghij"


def problem(name, prompt="", answer="1", difficulty=None):
    return Problem(name, prompt or f"What is {name}?", answer, metadata={"difficulty": difficulty})


def test_lengths_outside_the_bounds_are_removed():
    lengths = {"a": 3, "b": 4, "c": 9, "d": 10, "e": 5}
    problems = [problem(name, "x" * n, "12345" if name == "e" else "1") for name, n in lengths.items()]
    expected = {"a": "shorter than 4 characters", "d": "longer than 9 characters"}
    assert Length(4, 9, 4)(problems, {}) == expected | {"e": "answer longer than 4 characters"}
    assert Length()(problems, {}) == {}


def test_difficulties_outside_the_range_and_unknown_ones_are_removed_and_the_ends_are_kept():
    problems = [problem(str(value), difficulty=value) for value in (0, 1, 15, 16, None)]
    expected = {"0": "easier than 1", "None": "difficulty unknown"}
    assert Difficulty(1, 15)(problems, {}) == expected | {"16": "harder than 15"}
    assert Difficulty(low=1)(problems, {}) == expected
    assert Difficulty()(problems, {}) == {}
    with pytest.raises(DataError, match=r"no problem of data.train has a difficulty; name its column"):
        Difficulty(1, 15)([problem("a"), problem("b")], {})


def test_the_first_of_problems_that_ask_the_same_is_kept():
    texts = [r"Find $\dfrac{1}{2}+ x$.", r"find  \(\frac 1 2 + x\)", r"Find $\frac{1}{2} + x$."]
    texts += [r"Find $\frac{1}{2} - x$.", "Find 5!", "Find 5", "Find 0.5", "Find 05"]
    texts += ["Find x. [asy]draw(A);[/asy]", "Find x. [asy]draw(B);[/asy]"]
    pairs = zip("abcdefghij", texts, strict=True)
    problems = [problem(name, text, "21"[name != "c"]) for name, text in pairs]
    assert Duplicates()(problems, {}) == {"b": "duplicate", "c": "duplicate with another answer"}
    different = "duplicates with different answers"
    assert Duplicates("remove_all")(problems, {}) == {"a": different, "b": different, "c": different}
    assert Duplicates("remove_all")(problems[:2], {}) == {"b": "duplicate"}


def test_problems_in_other_scripts_are_removed_and_latex_is_no_script():
    problems = [
        problem("english", r"Let $\alpha = π/2$; find $\sin\alpha$ for naïve Gödel."),
        problem("chinese", r"已知 $\frac{x}{y} = 2$, 求 $\frac{x+y}{x-y}$"),
        problem("numbers", "1 + 1 = "),
        problem("russian", "Найдите сумму"),
    ]
    found = Scripts(["LATIN", "GREEK"])(problems, {})
    assert found == dict.fromkeys(("chinese", "russian"), "another script")
    found = Scripts(["CYRILLIC"], max_foreign=0.0)(problems, {})
    assert found == dict.fromkeys(("english", "chinese"), "another script")
    assert Scripts()(problems, {}) == {}


def test_a_filter_sees_what_the_ones_before_it_have_left():
    asked = ("a", "same", 9), ("b", "same", 1), ("c", "other", 1)
    problems = [problem(name, text, difficulty=difficulty) for name, text, difficulty in asked]
    filtered = apply_filters(problems, {"difficulty": Difficulty(high=5), "duplicates": Duplicates()}, {})
    assert ([kept.id for kept in filtered.kept], filtered.counts) == (["b", "c"], {"harder than 5": 1})
    filtered = apply_filters(problems, {"duplicates": Duplicates(), "difficulty": Difficulty(high=5)}, {})
    assert [kept.id for kept in filtered.kept] == ["c"]
    assert filtered.counts == {"duplicate": 1, "harder than 5": 1}
    assert [gone.id for gone in filtered.removed["harder than 5"]] == ["a"]
    with pytest.raises(DataError, match=r"leave none of the 3 problems of data.train \(3 harder than 0\)"):
        apply_filters(problems, {"difficulty": Difficulty(high=0)}, {})


def encode(item):
    return array("i", range(len(item.prompt)))


def test_the_account_tells_where_every_row_has_gone():
    rows = [problem(f"x/{index}", "a" * (index + 1)) for index in range(6)]
    first = ProblemSet(rows, "hub/x, split train", 9, {"no gold answer": 3})
    second = [problem("y/0", "a"), problem("y/1", "bbb")]
    exam = [problem(f"v/{index}", "c" * (2 * index + 1)) for index in range(4)]
    held_out = {"v": ProblemSet(exam, "hub/v, split test", 4, {})}
    mixed = mixture({"x": first, "y": second}, {"x": 3, "y": 1})
    chosen = select(mixed, held_out, {"duplicates": Duplicates()}, encode, 4, 3)
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


@pytest.mark.parametrize(("target", "option", "fits", "refused"), [
    (ColumnMapping, "answer_form", "last_box", "boxed"),
    (problem_table, "size", 3, 0), (problem_table, "limit", None, -1),
    (mixture, "weights", {"a": 0.5}, {"a": 0}), (Length, "max_chars", None, 0),
    (Scripts, "max_foreign", 0.0, -0.1), (LeakageFilter, "min_share", 1.0, 1.1),
    (reasoning_gym_problems, "split", "train", "test"),
    (reasoning_gym_problems, "validation_share", 0.25, 0),
])  # fmt: skip
def test_an_option_takes_what_fits_and_refuses_the_rest(target, option, fits, refused):
    kind = TypeAdapter(get_type_hints(target, include_extras=True)[option])
    assert kind.validate_python(fits) == fits
    with pytest.raises(ValidationError):
        kind.validate_python(refused)
