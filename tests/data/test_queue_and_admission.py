import functools
import operator
from collections import Counter
from itertools import count

import pytest
from tests.builders import group, rollout

from bapo_lightning.data.admission import AdmitAll, DynamicSampling
from bapo_lightning.data.problem_stream import ProblemStream
from bapo_lightning.data.regime import ReplayRegime
from bapo_lightning.data.replay_queue import ReplayQueue
from bapo_lightning.data.rollout_sampler import SamplingStatistics
from bapo_lightning.errors import DataError
from bapo_lightning.types import Problem


def groups(scores):
    return [group(f"p{index}", [rollout([1], [2], [-1.0])] * len(row), row) for index, row in enumerate(scores)]


def test_a_rollout_batch_is_served_in_epochs_of_minibatches_and_every_group_once_per_epoch():
    queue = ReplayQueue(epochs=2, minibatches=4, seed=0)
    queue.put(groups([[0.0, 1.0]] * 8))
    assert len(queue) == 8
    served = [[item.problem.id for item in queue.take()] for _ in range(8)]
    assert [len(part) for part in served] == [2] * 8
    for epoch in (served[:4], served[4:]):
        assert sorted(functools.reduce(operator.iadd, epoch, [])) == [f"p{index}" for index in range(8)]
    assert served[:4] != served[4:]
    assert len(queue) == 0


def test_a_batch_that_does_not_divide_is_refused():
    with pytest.raises(ValueError, match="3 groups does not divide into 2 minibatches"):
        ReplayQueue(epochs=1, minibatches=2, seed=0).put(groups([[0.0]] * 3))


def test_staleness_and_age_bound_follow_from_epochs_and_minibatches():
    regime = ReplayRegime("replay", epochs=2, minibatches=4)
    assert (regime.updates_per_rollout_batch, regime.max_age) == (8, 7)
    assert ReplayRegime("on_policy", 1, 1).max_age == 0


def test_the_stream_gives_every_problem_once_per_epoch_in_a_new_order():
    problems = [Problem(str(index), "", "") for index in range(10)]
    stream = ProblemStream(problems, seed=0)
    first, second = (["".join(problem.id for problem in stream.take(10))] for _ in range(2))
    assert sorted(first[0]) == sorted(second[0]) == list("0123456789")
    assert first != second
    assert Counter(problem.id for problem in ProblemStream(problems, seed=0).take(25)).most_common(1)[0][1] == 3


def test_the_stream_refuses_no_problems_and_repeated_ids():
    with pytest.raises(DataError, match="no problems"):
        ProblemStream([], seed=0)
    with pytest.raises(DataError, match="unique"):
        ProblemStream([Problem("a", "", "")] * 2, seed=0)


def test_admit_all_keeps_uniform_groups_and_counts_them():
    statistics = SamplingStatistics()
    admitted = AdmitAll().collect(3, lambda size: groups([[0.0, 0.0], [0.0, 1.0], [1.0, 1.0]]), statistics)
    assert len(admitted) == 3 and statistics.num_uniform_groups == 2 and statistics.num_dropped_groups == 0


def test_dynamic_sampling_replaces_uniform_groups_by_fresh_ones():
    rounds = iter([[[0.0, 0.0], [0.0, 1.0], [1.0, 1.0]], [[1.0, 0.0], [0.0, 0.0]], [[0.0, 1.0]]])
    asked = []

    def sample(size):
        asked.append(size)
        return groups(next(rounds))

    statistics = SamplingStatistics()
    admitted = DynamicSampling(max_rounds=10).collect(3, sample, statistics)
    assert asked == [3, 2, 1]
    assert len(admitted) == 3 and not any(item.is_uniform for item in admitted)
    assert (statistics.num_uniform_groups, statistics.num_dropped_groups) == (3, 3)


def test_dynamic_sampling_fills_up_with_uniform_groups_when_its_rounds_are_used_up():
    calls = count()

    def sample(size):
        next(calls)
        return groups([[0.0, 0.0]] * size)

    statistics = SamplingStatistics()
    admitted = DynamicSampling(max_rounds=4).collect(2, sample, statistics)
    assert len(admitted) == 2 and next(calls) == 4
    assert (statistics.num_uniform_groups, statistics.num_dropped_groups) == (8, 6)


def test_statistics_are_taken_once():
    statistics = SamplingStatistics(rollout_seconds=1.5, num_tokens=7)
    assert statistics.take().num_tokens == 7
    assert statistics == SamplingStatistics()
