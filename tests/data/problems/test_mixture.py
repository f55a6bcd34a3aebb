"""What a mixture promises: the shares, an epoch of each set, and the same draws after a resume."""

from collections import Counter
from itertools import pairwise

import pytest

from bapo_lightning.data.problems.mixture import furthest_behind, mixture
from bapo_lightning.data.problems.stream import ProblemStream
from bapo_lightning.system.errors import ConfigError, DataError
from bapo_lightning.types import Problem


def problems(name, count):
    return [Problem(f"{name}/{index}", f"{name} {index}", "") for index in range(count)]


WEIGHTS = {"a": 5, "b": 3, "c": 2}
SETS = {"a": problems("a", 30), "b": problems("b", 7), "c": problems("c", 50)}


def stream(weights=None, sets=SETS, seed=0, overlong=()):
    mixed = mixture(sets, weights)
    drawn = [problem for problem in mixed if problem not in overlong]
    return ProblemStream(drawn, seed, overlong, mixed.mixing)


def name_of(item):
    return item.problem.id.split("/")[0]


def test_every_set_gives_its_share_of_any_number_of_draws_to_less_than_one_problem_per_set():
    items, counts = stream(WEIGHTS).take(1000), Counter()
    for number, item in enumerate(items, 1):
        counts[name_of(item)] += 1
        assert all(abs(counts[name] - number * weight / 10) < 3 for name, weight in WEIGHTS.items())
    assert counts == {"a": 500, "b": 300, "c": 200}
    items = [item for item in items if name_of(item) == "b"]  # used up before it is begun again
    epochs = [[item.problem.id for item in items if item.epoch == epoch] for epoch in range(42)]
    assert all(sorted(epoch) == [f"b/{index}" for index in range(7)] for epoch in epochs)
    assert sum(first != second for first, second in pairwise(epochs)) >= 40
    assert furthest_behind({"a": 0, "b": 0}, {"a": 0.5, "b": 0.5}) == "a"  # of equals the first


def test_without_weights_an_epoch_holds_every_problem_of_all_sets_once():
    items = stream().take(87)
    assert Counter(map(name_of, items)) == {"a": 30, "b": 7, "c": 50}
    assert len({item.problem.id for item in items}) == 87
    assert {item.epoch for item in items} == {0}


@pytest.mark.parametrize("taken", [0, 17, 333])
@pytest.mark.parametrize("weights", [None, WEIGHTS])
def test_the_draws_after_a_resume_are_those_of_a_run_that_was_not_interrupted(weights, taken):
    whole, begun, resumed = stream(weights, seed=4), stream(weights, seed=4), stream(weights, seed=4)
    whole_draws, first = whole.take(taken + 200), begun.take(taken)
    resumed.load_state_dict(begun.state_dict())
    assert first + resumed.take(200) == whole_draws
    assert resumed.state_dict() == whole.state_dict()


def test_the_order_depends_on_the_seed_and_the_position_is_that_of_each_set():
    assert stream(WEIGHTS, seed=1).take(50) != stream(WEIGHTS, seed=2).take(50)
    mixed, place = stream(WEIGHTS), "a: epoch 1, 20 drawn; b: epoch 4, 2 drawn; c: epoch 0, 20 drawn"
    mixed.take(100)
    assert mixed.describe() == f"data position ({place})"


def test_what_cannot_be_drawn_is_listed_once_in_each_epoch_of_its_set():
    overlong = [SETS["b"][6], SETS["c"][0], SETS["c"][1]]
    mixed, listed = stream(WEIGHTS, overlong=overlong), Counter()
    for _ in range(100):
        before = mixed.places
        mixed.take(7)
        listed.update((item.problem.id, item.epoch) for item in mixed.never_drawn_since(before))
    # 700 draws: 210 of b's 6 problems begin 35 epochs, 140 of c's 48 begin 3.
    expected = [("b/6", epoch) for epoch in range(35)]
    expected += [(f"c/{index}", epoch) for index in range(2) for epoch in range(3)]
    assert listed == dict.fromkeys(expected, 1)


def test_a_training_set_that_changed_is_not_gone_on_with():
    state = stream(WEIGHTS).state_dict()
    changed = {**SETS, "a": [*SETS["a"][:-1], Problem("a/29", "another text", "")]}
    for other in (stream(), stream(WEIGHTS, changed)):
        with pytest.raises(DataError, match=r"the training set differs from the checkpoint's"):
            other.load_state_dict(state)


def test_weights_that_do_not_fit_and_sets_that_share_ids_or_are_empty_are_refused():
    for weights, words in (
        ({"a": 1, "b": 1}, "data.train.weights has no c"),
        ({"a": 1, "b": 1, "c": 1, "d": 1}, "data.train.weights.d names no set; the sets are a, b, c"),
    ):
        with pytest.raises(ConfigError, match=words):
            mixture(SETS, weights)
    with pytest.raises(ConfigError, match=r"a mixture of no sets"):
        mixture({})
    with pytest.raises(DataError, match=r"sets a and b of data.train both hold x/0"):
        mixture({"a": problems("x", 1), "b": problems("x", 1)})
    words = r"no problem of b in data.train is left after filters and prompt limit"
    with pytest.raises(DataError, match=words):
        stream({"a": 1, "b": 1}, {"a": SETS["a"], "b": SETS["b"]}, overlong=SETS["b"])
