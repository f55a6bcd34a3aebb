"""chain_sum with two one-digit terms has 10 * 10 * 2 questions."""

import pickle
import sys
import threading

import pytest

from bapo_lightning.data.problems.reasoning_gym import check_speed, reasoning_gym_problems
from bapo_lightning.system.errors import DataError

TWO_DIGITS = {"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 1}


def problems(**changes):
    options = {"task": "chain_sum", "size": 4000, "seed": 0, "parameters": TWO_DIGITS, "split": "train"}
    return reasoning_gym_problems(**options | {"validation_share": 0.25} | changes)


def test_the_splits_hold_every_question_once():
    train, validation = problems(), problems(split="validation")
    assert (len(train), len(validation)) == (143, 57)
    for key in ("prompt", "id"):
        assert len({getattr(problem, key) for problem in train + validation}) == 200
    # They are disjoint whatever their seeds and sizes.
    held_out = {problem.prompt for problem in problems(split="validation", seed=5, size=300)}
    assert len(held_out) == 45
    assert {problem.prompt for problem in problems(seed=6, size=900)} & held_out == set()


def test_a_problem_carries_its_entry_and_can_be_hashed_and_pickled():
    first = problems(limit=2)[0]
    assert (first.id, first.answer, first.source) == ("chain_sum/0/0", "-4", "chain_sum")
    assert first.prompt == "State the final answer to the following arithmetic problem: 0 - 4 ="
    assert first.metadata["metadata"]["expression"] == "0 - 4"
    assert hash(first) == hash(pickle.loads(pickle.dumps(first)))
    assert len(problems(limit=2)) == 2


@pytest.mark.parametrize(("changes", "words"), [
    ({"task": "chain_sums"}, "Dataset 'chain_sums' not registered; correct data.train"),
    ({"parameters": {"terms": 2}}, "unexpected keyword argument 'terms'"),
    ({"parameters": {"max_digits": 1 << 53}}, "data.train.parameters.max_digits=9007199254740992 must be"),
    ({"size": 0}, "size must be positive"),
    ({"validation_share": 1.0}, "none of the 200 distinct questions of task=chain_sum belongs to train"),
])  # fmt: skip
def test_what_cannot_be_made_is_one_clear_error(changes, words):
    with pytest.raises(DataError, match=words):
        problems(**changes)


def test_what_takes_too_long_for_one_problem_is_reported_at_once(monkeypatch):
    monkeypatch.setattr("bapo_lightning.data.problems.reasoning_gym.FIRST_SECONDS", 0.1)
    ended = threading.Event()
    with pytest.raises(DataError, match=r"a task needs more than 0.1 s for one problem; .* in data.train"):
        check_speed(ended.wait, "a task", "train")
    ended.set()


def test_a_missing_package_names_the_command_that_installs_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "reasoning_gym", None)
    with pytest.raises(DataError, match=r"\.venv/bin/python -m pip install -e \"\.\[reasoning-gym\]\""):
        problems()
