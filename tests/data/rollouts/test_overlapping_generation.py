"""Generation beside training, step by step and without threads."""

from tests.data.rollouts.scripted import ScriptedEngine, scheduler

from bapo_lightning.data.rollouts.collector import TrainerState
from bapo_lightning.data.rollouts.overlap import Overlap
from bapo_lightning.data.rollouts.regime import Regime
from bapo_lightning.data.rollouts.sampled_pass import SampledPass


def overlapping(max_age):
    """An overlap of batches of two groups and two updates, and the versions that the engine was given."""
    regime = Regime("async", 1, 2, max_new_tokens=6, async_generation=True, max_age=max_age)
    engine, given = ScriptedEngine(regime.max_new_tokens), []

    def refresh():
        given.append(overlap.trainer.version)
        engine.load_weights(None, overlap.trainer.version)

    overlap = Overlap(scheduler(engine, regime, groups_per_batch=2, num_batches=4), refresh, needed=2)
    return overlap, engine, given


def one_pass(overlap):
    requests = overlap.begin()
    sampler = overlap.scheduler.sampler
    continued = sampler.continued(requests, overlap.scheduler.running)
    finished, version = overlap.sampled(SampledPass(requests, continued, 0.0))
    overlap.scored(finished, sampler.score(finished, version), 0.0)


def test_weights_come_only_where_a_pass_would_begin():
    overlap, _, given = overlapping(max_age=1)
    overlap.visit(TrainerState(0, 0))
    assert not overlap.may_begin() and overlap.wants_weights
    assert not overlap.has_batch(2)
    assert (given, overlap.wants_weights, overlap.may_begin()) == ([0], False, True)
    one_pass(overlap)
    assert overlap.has_batch(2) and len(overlap.take(2)) == 2
    overlap.visit(TrainerState(1, 1))
    overlap.serve_weights()
    assert given == [0] and not overlap.may_begin()  # no room before the next batch
    overlap.visit(TrainerState(2, 2))
    overlap.serve_weights()
    assert given == [0, 2] and overlap.may_begin()


def test_taking_a_batch_makes_room_for_a_pass_beside_the_next_update():
    overlap, _, given = overlapping(max_age=3)
    overlap.visit(TrainerState(0, 0))
    overlap.serve_weights()
    one_pass(overlap)
    overlap.take(2)
    assert overlap.may_begin() and given == [0]


def test_no_weights_come_during_a_pass_and_none_begins_while_the_engine_is_held():
    overlap, _, given = overlapping(max_age=7)
    overlap.visit(TrainerState(0, 0))
    overlap.serve_weights()
    overlap.begin()
    overlap.visit(TrainerState(1, 1))
    overlap.serve_weights()
    assert overlap.in_pass and given == [0]
    overlap = overlapping(max_age=7)[0]
    overlap.visit(TrainerState(0, 0))
    overlap.serve_weights()
    overlap.held = True
    assert not overlap.may_begin() and not overlap.wants_weights
