"""The language of the locks: splits, demonstrations, verdicts."""

import random
import statistics
from collections import Counter

import pytest

from bapo_lightning.tiny_worlds.locks.task import (
    CHARACTERS,
    SEARCH,
    Locks,
    all_lock_problems,
    all_locks,
    demonstration,
    lock_problems,
    opened,
)
from bapo_lightning.types import Completion, FinishReason, ScoreStatus

WORLD = Locks()


def completion(text, finish=FinishReason.STOP):
    return Completion(text, len(text) + 1, finish)


def lock_of(problem):
    return all_locks()[int(problem.prompt[:2])]


def test_the_splits_share_every_lock_and_no_day():
    train, held_out = lock_problems("train"), lock_problems("validation")
    assert (len(train), len(held_out)) == (800, 200)
    assert {p.prompt for p in train + held_out} == {p.prompt for p in all_lock_problems()}
    assert {p.prompt[:2] for p in train} == {p.prompt[:2] for p in held_out}
    assert {p.prompt[3] for p in train}.isdisjoint(p.prompt[3] for p in held_out)
    assert lock_problems("train", 5) == train[:5]


def test_the_master_key_opens_on_every_day_and_the_popular_one_on_its_share():
    problems = all_lock_problems()
    assert all(lock_of(problem).master in problem.answer for problem in problems)
    share = statistics.fmean(lock_of(problem).popular in problem.answer for problem in problems)
    assert share == pytest.approx(WORLD.popular_opens, abs=0.05)
    assert {len(problem.answer) for problem in problems} == {1, 2}


def test_demonstrations_take_keys_as_the_constants_say_and_search_where_the_key_fails():
    generator, problem = random.Random(0), all_lock_problems()[0]
    texts = [demonstration(problem, generator) for _ in range(20_000)]
    assert set("".join(texts)) <= set(CHARACTERS)
    counts = Counter(text[0] for text in texts)
    lock = lock_of(problem)
    assert counts[lock.popular] / len(texts) == pytest.approx(WORLD.popular, abs=0.02)
    assert counts[lock.master] / len(texts) == pytest.approx(WORLD.master, abs=0.01)
    assert len(counts) == WORLD.num_keys
    assert all((text[1:] == "#") == (text[0] in problem.answer) for text in texts)
    assert all(text[1:] in ("#", SEARCH + "#") for text in texts)


def test_verdicts():
    problem = all_lock_problems()[0]
    key = lock_of(problem).master
    wrong = next(other for other in "abc" if other not in problem.answer)
    texts = [key, wrong, wrong + SEARCH, key + SEARCH, "", "7", key + "??"]
    scores = opened([problem] * len(texts), [completion(text) for text in texts])
    assert [score.value for score in scores] == [1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0]
    unparsable = ScoreStatus.UNPARSABLE
    assert [score.status is unparsable for score in scores] == [False] * 4 + [True] * 3
    (cut,) = opened([problem], [completion(key, FinishReason.LENGTH)])
    assert cut.value == 0 and cut.status is unparsable
