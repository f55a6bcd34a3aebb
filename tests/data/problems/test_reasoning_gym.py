"""chain_sum with two one-digit terms has 10 * 10 * 2 questions."""

from __future__ import annotations

import pickle
import sys

import pytest

from bapo_lightning.data.problems.reasoning_gym import reasoning_gym_problems
from bapo_lightning.errors import DataError

TWO_DIGITS = {"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 1}


def problems(**changes):
    return reasoning_gym_problems(
        **{
            "task": "chain_sum",
            "size": 4000,
            "seed": 0,
            "parameters": TWO_DIGITS,
            "split": "train",
            "validation_share": 0.25,
            **changes,
        }
    )


def test_the_splits_hold_every_question_once() -> None:
    train, validation = problems(), problems(split="validation")
    assert (len(train), len(validation)) == (143, 57)
    assert (
        len({problem.prompt for problem in train + validation})
        == len({problem.id for problem in train + validation})
        == 200
    )


def test_the_splits_are_disjoint_whatever_their_seeds_and_sizes() -> None:
    held_out = {problem.prompt for problem in problems(split="validation", seed=5, size=300)}
    assert len(held_out) == 45
    assert {problem.prompt for problem in problems(seed=6, size=900)} & held_out == set()


def test_a_problem_carries_its_entry_and_can_be_hashed_and_pickled() -> None:
    first = problems(limit=2)[0]
    assert (first.id, first.answer, first.source) == ("chain_sum/0/0", "-4", "chain_sum")
    assert first.prompt == "State the final answer to the following arithmetic problem: 0 - 4 ="
    assert first.metadata["metadata"]["expression"] == "0 - 4"
    assert hash(first) == hash(pickle.loads(pickle.dumps(first)))
    assert len(problems(limit=2)) == 2


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"task": "chain_sums"}, "Dataset 'chain_sums' not registered; correct data.train"),
        ({"parameters": {"terms": 2}}, "unexpected keyword argument 'terms'"),
        ({"parameters": {"min_terms": 0}}, "min_terms must be positive"),
        ({"size": 0}, "size must be positive"),
        ({"validation_share": 1.0}, "none of the 200 distinct questions of task=chain_sum belongs to train"),
    ],
)
def test_what_cannot_be_made_is_one_clear_error(changes, words) -> None:
    with pytest.raises(DataError, match=words):
        problems(**changes)


def test_a_missing_package_names_the_command_that_installs_it(monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "reasoning_gym", None)
    with pytest.raises(DataError, match=r"\.venv/bin/python -m pip install reasoning-gym"):
        problems()
