from array import array
from collections import Counter
from dataclasses import replace

import pytest
from tests.builders import group, rollout

from bapo_lightning.data.batches.replay_queue import ReplayQueue
from bapo_lightning.data.problems.stream import ProblemStream
from bapo_lightning.data.rollouts.admission import DynamicSampling
from bapo_lightning.data.rollouts.group_state import ArrayStore, pack_group, unpack_group
from bapo_lightning.data.rollouts.observer import RolloutStatistics, SelectionBias
from bapo_lightning.data.rollouts.regime import Regime
from bapo_lightning.data.rollouts.running_group import RunningGroup
from bapo_lightning.system.errors import DataError
from bapo_lightning.types import FinishReason, Origin, Problem, Reply, Rollout, Segment, Steps

PROBLEMS = [Problem(str(index), "", "") for index in range(10)]


def groups(scores):
    return [
        group(f"p{index}", [rollout([1], [2], [-1.0])] * len(row), row) for index, row in enumerate(scores)
    ]


def ids(draws):
    return [draw.problem.id for draw in draws]


def test_a_rollout_batch_is_served_in_epochs_of_minibatches_and_every_group_once_per_epoch():
    queue = ReplayQueue(epochs=2, minibatches=4, seed=0)
    queue.put(groups([[0.0, 1.0]] * 8))
    assert len(queue) == 8
    served = [[item.problem.id for item in queue.take()] for _ in range(8)]
    assert [len(part) for part in served] == [2] * 8
    for epoch in (served[:4], served[4:]):
        assert sorted(name for part in epoch for name in part) == [f"p{index}" for index in range(8)]
    assert served[:4] != served[4:]
    assert len(queue) == 0
    with pytest.raises(ValueError, match="3 groups does not divide into 4 minibatches"):
        queue.put(groups([[0.0]] * 3))


def test_a_group_comes_back_from_a_checkpoint_with_all_that_it_may_hold():
    feedback, turn = (
        Segment.of_feedback(array("i", [500])),
        Segment(array("i", [7, 8]), array("f", [-1, -2]), 3),
    )
    talk = Rollout(array("i", [5]), (turn, feedback, turn), FinishReason.STOP, replies=(Reply("4", calls=1),))
    expert = replace(rollout([5], [9], [0.0]), origin=Origin.EXPERT, finish=FinishReason.LENGTH)
    made = replace(
        group("p0", [talk, expert], [1.0, 0.0], [0.5, -0.5]), weight=0.3, hint=0.25, ready_version=4
    )
    steps = Steps(array("i", [0, 1, 1, 1]), array("f", [0.5, 1.0, 1.0, 1.0]))
    first = replace(made.samples[0], steps=steps, scores={"entry_entropy": array("f", [1, 2, 3, 4])})
    made = replace(made, samples=(first, replace(made.samples[1], is_trained=False)))
    store = ArrayStore()
    packed = pack_group(store, made)
    restored = ArrayStore.from_state_dict(store.state_dict())
    assert unpack_group(restored, packed, lambda _: made.problem) == made


def test_a_queue_goes_on_from_its_state_and_shuffles_as_it_would_have():
    queue, restored = ReplayQueue(2, 4, seed=3), ReplayQueue(2, 4, seed=0)
    queue.put(groups([[0.0, 1.0]] * 8))
    queue.take()
    store = ArrayStore()
    state = queue.state_dict(store)
    assert len(state["groups"]) == 8  # each once, however often it will be served
    by_id = {f"p{index}": Problem(f"p{index}", "", "") for index in range(8)}
    restored.load_state_dict(state, ArrayStore.from_state_dict(store.state_dict()), by_id.__getitem__)
    for item in (queue, restored):
        item.put(groups([[1.0, 0.0]] * 8))
    assert [queue.take() for _ in range(15)] == [restored.take() for _ in range(15)]


@pytest.mark.parametrize(("regime", "updates", "age"), [
    (Regime("replay", epochs=2, minibatches=4), 8, 7),
    (Regime("partial", 1, 4, max_new_tokens=32, partial_tokens=8), 4, (2 * 4 - 1) * 4 - 1),
    (Regime("partial", 1, 1, max_new_tokens=32, partial_tokens=5, max_segments=2), 1, 2),
    (Regime("async", 1, 4, async_generation=True, max_age=7), 4, 7),
])  # fmt: skip
def test_what_a_regime_implies(regime, updates, age):
    assert (regime.updates_per_rollout_batch, regime.age_bound) == (updates, age)


def test_masking_plans_for_what_comes_by_itself_and_evicts_only_what_has_nothing_left_to_train_on():
    regime = Regime("partial", 1, 4, max_new_tokens=32, partial_tokens=8, max_age=5, stale_action="mask")
    assert regime.admission_age == 27
    assert not regime.is_evicted(oldest_version=0, newest_version=10, version=12)
    assert regime.is_evicted(oldest_version=0, newest_version=9, version=12)


def test_the_stream_gives_every_problem_once_per_epoch_in_a_new_order():
    stream = ProblemStream(PROBLEMS, seed=0)
    first, second = stream.take(10), stream.take(10)
    assert sorted(ids(first)) == sorted(ids(second)) == list("0123456789")
    assert ids(first) != ids(second)
    assert {draw.epoch for draw in first} == {0} and {draw.epoch for draw in second} == {1}
    assert Counter(ids(ProblemStream(PROBLEMS, seed=0).take(25))).most_common(1)[0][1] == 3


def test_the_stream_refuses_no_problems_repeated_ids_and_unknown_ones():
    with pytest.raises(DataError, match="no problems"):
        ProblemStream([], seed=0)
    with pytest.raises(DataError, match="unique"):
        ProblemStream([Problem("a", "", "")] * 2, seed=0)
    with pytest.raises(DataError, match="'x', which the training set does not have"):
        ProblemStream(PROBLEMS, seed=0).problem("x")


def test_dynamic_sampling_admits_groups_whose_scores_differ():
    zeros, mixed, ones = groups([[0.0, 0.0], [0.0, 1.0], [1.0, 1.0]])
    rule = DynamicSampling(max_rounds=2)
    assert rule.admits(mixed) and not rule.admits(zeros) and not rule.admits(ones)


def test_statistics_are_taken_once():
    statistics = RolloutStatistics(rollout_seconds=1.5, num_tokens=7)
    assert statistics.take().num_tokens == 7
    assert statistics == RolloutStatistics()


def test_what_is_trained_on_is_compared_with_all_that_the_run_sampled():
    bias = SelectionBias()
    long, short = (rollout([1], [2] * length, [-1.0] * length) for length in (12, 4))
    ended = group("p", [short, short], [1.0, 0.0])
    bias.on_scored([], [ended], [], 0.0)
    bias.on_evict([RunningGroup(ended.item, [long, long]), ended], 3)
    again = SelectionBias()
    again.load_state_dict(bias.state_dict())
    found = again.metrics(ended.samples[:1])
    assert found == {"rollout/trained_length_ratio": 4 / 8, "rollout/trained_score_difference": 0.5}
    assert SelectionBias().metrics([]) == {}
