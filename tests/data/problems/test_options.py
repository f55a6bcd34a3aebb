"""Annotations refuse values that an option cannot have: the schema of the configuration is made of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, get_type_hints

import pytest
from pydantic import TypeAdapter, ValidationError

from bapo_lightning.data.problems.columns import ColumnMapping
from bapo_lightning.data.problems.filters import Duplicates, Length, Scripts
from bapo_lightning.data.problems.mixture import mixture
from bapo_lightning.data.problems.overlap import LeakageFilter
from bapo_lightning.data.problems.reasoning_gym import reasoning_gym_problems
from bapo_lightning.data.problems.table import problem_table


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
