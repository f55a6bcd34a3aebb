"""Service times: those of the plan by its own formulas, those of a run by its metrics."""

import random
from dataclasses import replace
from pathlib import Path
from typing import get_args

import numpy as np
import pytest
from tests.plan.test_planning import ASSUMED, GPU, RUN

from bapo_lightning.extras.simulation import configured
from bapo_lightning.extras.simulation.fleet import Failures, VirtualFleet
from bapo_lightning.extras.simulation.lengths import LengthKind, length_table
from bapo_lightning.extras.simulation.times import measured_times, planned_times, planned_update
from bapo_lightning.plan.planning import make_plan
from bapo_lightning.plan.work import forward_flops, generation
from bapo_lightning.system.errors import DataError
from bapo_lightning.system.run_folder.record import RunRecord

LINK = 1e12
MEAN = int(ASSUMED.mean_response_share * RUN.response_tokens)


def test_a_pass_over_equal_responses_takes_what_the_plan_says():
    times = planned_times(RUN, GPU, ASSUMED, LINK, 0.0)
    engine = replace(times.engine, prefill=0.0)
    done = VirtualFleet(times.copies, engine, Failures(), 0).run(0.0, [(RUN.prompt_tokens, MEAN)] * 8)
    planned = generation(replace(RUN, group_size=2, response_tokens=MEAN), GPU, 1e5, MEAN, 0.5)
    assert planned.concurrent == engine.slots == 8
    # The plan's mean context is half a token more: it counts a step's own token.
    counted = planned.step_seconds - 8 * engine.context / 2
    assert done.seconds == pytest.approx(planned.steps * counted)


def test_an_update_over_equal_responses_takes_what_the_plan_says():
    seconds = make_plan(RUN, GPU, ASSUMED).seconds
    planned = sum(seconds.values()) - seconds["generation"]
    assert 4 * planned_update(RUN, GPU, ASSUMED, LINK, [MEAN] * 8) == pytest.approx(planned)


def test_the_longest_sample_and_the_network_bound_an_update_on_many_gpus():
    many = replace(RUN, num_gpus=1000)
    one = planned_update(RUN, GPU, ASSUMED, LINK, [MEAN] * 8) / 8
    assert planned_update(many, GPU, ASSUMED, LINK, [MEAN] * 8) == pytest.approx(one)
    longest = forward_flops(RUN, 11) / forward_flops(RUN, MEAN)
    uneven = [MEAN] * 6 + [MEAN + 3, MEAN - 3]
    assert planned_update(many, GPU, ASSUMED, LINK, uneven) == pytest.approx(longest * one)
    sharded = replace(many, strategy="fsdp")
    assert planned_update(sharded, GPU, ASSUMED, 100.0, [MEAN] * 8) == 3 * RUN.model.num_parameters * 4 / 100


def test_weights_take_their_way_in_addition_to_a_constant():
    times = planned_times(RUN, GPU, ASSUMED, 1000.0, 5.0)
    assert times.sync_seconds == 5 + 2 * RUN.model.num_parameters / 1000


def run_record(overlaps, rows, stream=None):
    return RunRecord(Path("run"), {"regime": {"async_generation": overlaps, "stream": stream}}, {}, rows)


def row(passes, tokens, **others):
    seconds = 0.5 * passes + 0.01 * tokens
    base = {"rollout/passes": passes, "rollout/num_tokens": tokens, "time/rollout_seconds": seconds}
    return base | {"time/step_seconds": 10.0, "rollout/num_samples": 4, "time/reward_seconds": 0.2} | others


def test_a_pass_of_a_run_takes_a_time_of_its_own_and_one_by_token():
    first, third = row(1, 7, **{"time/rollout_seconds": 99.0}), row(2, 300, **{"time/sync_seconds": 3.0})
    rows = [first, row(1, 100), third, row(1, 50), {"time/step_seconds": 2.0}]
    times = measured_times(run_record(True, rows))
    assert (times.engine.begin, times.engine.sequence) == pytest.approx((0.5, 0.01))
    assert times.engine.jitter == pytest.approx((1.0, 1.0, 1.0))
    assert (times.sync_seconds, times.reward_seconds) == (3.0, pytest.approx(0.05))
    drawn = random.Random(0)
    expected = [drawn.choice((10.0, 7.0, 10.0, 2.0)) for _ in range(20)]
    assert [times.update([5]) for _ in range(20)] == expected


def test_what_a_run_in_turns_generates_is_not_part_of_its_updates():
    rows = [row(1, 7), row(1, 100), row(1, 300, **{"time/wait_seconds": 3.0})]
    times = measured_times(run_record(False, rows))
    assert sorted({times.update([5]) for _ in range(20)}) == pytest.approx([6.3, 8.3])


def test_a_run_that_measured_nothing_is_refused():
    with pytest.raises(DataError, match="has not measured what a simulation needs"):
        measured_times(run_record(True, [row(1, 7), {"time/step_seconds": 2.0}]))


@pytest.mark.parametrize("kind", get_args(LengthKind))
def test_every_kind_has_the_mean_that_is_asked_for_within_the_limit(kind):
    table = length_table(kind, 400.0, 1000, spread=0.8)
    assert table.mean() == pytest.approx(400, rel=0.01)
    assert 1 <= table.min() <= table.max() <= 1000


def test_tails_are_ordered():
    def spread(kind, width):
        return length_table(kind, 400.0, 10_000, width).std()

    assert spread("constant", 0.0) == 0
    assert spread("lognormal", 0.4) < spread("geometric", 0.0) < spread("lognormal", 1.2)


def test_the_lengths_of_a_run_are_a_table_and_there_must_be_some(monkeypatch):
    rows = [{"num_tokens": 3}, {"num_tokens": 1}]
    monkeypatch.setattr(configured, "read_rollouts", lambda path: rows)
    table = configured.lengths_of(run_record(True, []))
    assert table.tolist() == [3, 1] and table.dtype == np.int64
    rows.clear()
    with pytest.raises(DataError, match=r"no rollouts\.jsonl with lengths"):
        configured.lengths_of(run_record(True, []))


def test_a_step_of_a_stream_takes_a_time_of_its_own_and_one_by_token():
    calls = [(1, 7), (1, 100), (2, 300), (1, 50)]  # of eight steps
    rows = [row(passes, tokens, **{"rollout/decoding_steps": 8 * passes}) for passes, tokens in calls]
    engine = measured_times(run_record(True, rows, "keep")).engine
    assert (engine.step, engine.sequence) == pytest.approx((0.5 / 8, 0.01))


def test_what_lies_between_two_calls_of_a_stream_and_is_no_wait_is_a_calls_own():
    idle = {"time/engine_idle_seconds": 6.5}
    syncs = {"time/sync_seconds": 3.0, "sync/transfer_seconds": 0.5}
    rows = [row(1, 7), row(2, 100, **idle), row(3, 50, **idle, **syncs), {"time/step_seconds": 10.0}]
    times = measured_times(run_record(True, rows, "keep"))
    between = (10 - 6.5 - 2.0) + (10 - 6.5 - 2.0)
    assert times.engine.begin == pytest.approx(between / 5)
    assert (times.sync_seconds, times.load_seconds) == (3.0, 0.5)


@pytest.mark.parametrize(
    "engine", [{"max_rows": 96}, {"make_engine": {"max_rows": 96}}, {"options": {"max_num_seqs": 96}}]
)
def test_no_more_sequences_run_at_once_than_the_engine_of_the_run_takes(engine):
    record = run_record(True, [row(1, 7), row(1, 100), row(2, 300)], "keep")
    record.config["rollout"] = {"engine": engine}
    assert measured_times(record).engine.slots == 96
