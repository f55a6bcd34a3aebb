"""From running groups to scored ones: requests, their seeds' keys, texts, rewards and advantages, by hand."""

from array import array
from dataclasses import replace

import pytest
import torch
from tests.data.rollouts.scripted import ScriptedEngine, ruled, sampler, segment

from bapo_lightning.objectives.advantages.group import group_advantages
from bapo_lightning.types import FinishReason, Problem, Rollout, Score, ScoreStatus, WorkItem
from bapo_lightning.types.rollouts import CHUNK

ITEMS = [WorkItem(Problem("4", "", ""), epoch=0), WorkItem(Problem("5", "", ""), epoch=1)]


def made(**changes):
    return replace(sampler(ScriptedEngine(9), max_new_tokens=6, max_restarts=0), **changes)


def finished(groups, *lengths):
    for index, length in enumerate(lengths):
        extend(groups[index // 2], index % 2, length, FinishReason.STOP)
    return groups


def extend(group, index, length, finish):
    group.rollouts[index] = group.rollouts[index].extended(segment(length), finish, 6)


def test_a_rollout_joins_tokens_of_one_version_and_ends_at_a_stop_or_at_the_limit():
    begun = Rollout(array("i", [7])).extended(segment(2), FinishReason.LENGTH, max_new_tokens=6)
    longer = begun.extended(segment(1, start=2), FinishReason.LENGTH, max_new_tokens=6)
    assert longer.segments == (segment(3),) and longer.finish is None
    newer = longer.extended(segment(2, version=1), FinishReason.LENGTH, max_new_tokens=6)
    assert newer.segments == (segment(3), segment(2, version=1)) and newer.finish is None
    full = newer.extended(segment(1, version=2), FinishReason.LENGTH, max_new_tokens=6)
    assert (full.finish, full.length) == (FinishReason.LENGTH, 6)
    stopped = begun.extended(segment(1, start=2), FinishReason.STOP, max_new_tokens=6)
    assert (stopped.finish, stopped.length) == (FinishReason.STOP, 3)


@pytest.mark.parametrize("end", [FinishReason.STOP, FinishReason.LENGTH])
def test_a_response_that_grows_by_few_tokens_ends_as_one_that_is_sampled_at_once(end):
    few = Rollout(array("i", [7]))
    for start in range(0, 3 * CHUNK, 8):
        few = few.extended(segment(8, version=start // (2 * CHUNK), start=start), None, 4 * CHUNK)
        assert few.length == start + 8
    assert 2 < len(few.segments) < 5
    few = few.extended(segment(8, version=1, start=3 * CHUNK), end, 3 * CHUNK + 8)
    assert few.segments == (segment(2 * CHUNK), segment(CHUNK + 8, version=1, start=2 * CHUNK))
    assert few.finish is end
    longer = Rollout(array("i", [7]), (segment(CHUNK), segment(8, start=CHUNK)))
    assert longer.cut().segments == (segment(CHUNK + 8),)


def test_requests_continue_what_runs_and_name_group_and_sample():
    source = made()
    groups = source.start(ITEMS, group_size=2)
    extend(groups[0], 0, 4, FinishReason.LENGTH)
    extend(groups[1], 0, 1, FinishReason.STOP)
    requests = source.requests(groups, partial_tokens=4)
    assert [(item.group, item.index) for item in requests] == [(0, 0), (0, 1), (1, 1)]
    assert [list(item.token_ids) for item in requests] == [[4, 0, 1, 2, 3], [4], [5]]
    assert [item.max_new_tokens for item in requests] == [2, 4, 4]
    assert len({item.seed for item in requests}) == 3
    begun = source.requests(source.start(ITEMS, group_size=2), partial_tokens=4)
    assert len({item.seed for item in begun}) == 4
    with pytest.raises(ValueError, match="has not ended"):
        source.score(groups, 0)


def test_advantages_of_a_group_do_not_depend_on_the_groups_scored_with_it():
    # torch's deviation of a lone row can differ in its last bit from that of the same row among others
    rewards = torch.tensor([[0.7351, 0.7357], [0.0, 1.0], [0.3, 0.2]])
    source = made(
        advantages=lambda table: group_advantages(table, scale="std"),
        rules=ruled(shape=lambda rollout, version: float(rewards.flatten()[rollout.length - 1])),
        reward=lambda problems, completions: [Score(0.0, ScoreStatus.WRONG) for _ in completions],
    )
    items = [*ITEMS, WorkItem(Problem("6", "", ""), epoch=0)]
    groups = finished(source.start(items, 2), 1, 2, 3, 4, 5, 6)
    together = [group.advantages for group in source.score(groups, 0)]
    alone = [source.score([group], 0)[0].advantages for group in groups]
    assert together == alone == [tuple(row) for row in group_advantages(rewards).tolist()]
