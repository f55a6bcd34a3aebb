"""Generation beside training, step by step and without threads."""

from tests.data.rollouts.scripted import ScriptedEngine, scheduler

from bapo_lightning.data.rollouts.async_protocol import AsyncProtocol
from bapo_lightning.data.rollouts.collector import TrainerState
from bapo_lightning.data.rollouts.regime import Regime
from bapo_lightning.data.rollouts.sampled_pass import SampledPass


def overlapping(max_age):
    """The protocol of batches of two groups and two updates, and the versions that the engine was given."""
    regime = Regime("async", 1, 2, max_new_tokens=6, async_generation=True, max_age=max_age)
    engine, given = ScriptedEngine(regime.max_new_tokens), []

    def refresh():
        given.append(protocol.trainer.version)
        engine.load_weights(None, protocol.trainer.version)

    protocol = AsyncProtocol(scheduler(engine, regime, groups_per_batch=2, num_batches=4), refresh, needed=2)
    return protocol, engine, given


def one_pass(protocol):
    requests = protocol.begin()
    sampler = protocol.scheduler.sampler
    continued = sampler.continued(requests, protocol.scheduler.running)
    finished, version = protocol.sampled(SampledPass(requests, continued, 0.0))
    protocol.scored(finished, sampler.score(finished, version), 0.0)


def test_weights_come_only_where_a_pass_would_begin():
    protocol, _, given = overlapping(max_age=1)
    protocol.visit(TrainerState(0, 0))
    assert not protocol.may_begin() and protocol.wants_weights
    assert not protocol.has_batch(2)
    assert (given, protocol.wants_weights, protocol.may_begin()) == ([0], False, True)
    one_pass(protocol)
    assert protocol.has_batch(2) and len(protocol.take(2)) == 2
    protocol.visit(TrainerState(1, 1))
    protocol.serve_weights()
    assert given == [0] and not protocol.may_begin()  # no room before the next batch
    protocol.visit(TrainerState(2, 2))
    protocol.serve_weights()
    assert given == [0, 2] and protocol.may_begin()


def test_taking_a_batch_makes_room_for_a_pass_beside_the_next_update():
    protocol, _, given = overlapping(max_age=3)
    protocol.visit(TrainerState(0, 0))
    protocol.serve_weights()
    one_pass(protocol)
    protocol.take(2)
    assert protocol.may_begin() and given == [0]


def test_no_weights_come_during_a_pass_and_none_begins_while_the_engine_is_held():
    protocol, _, given = overlapping(max_age=7)
    protocol.visit(TrainerState(0, 0))
    protocol.serve_weights()
    protocol.begin()
    protocol.visit(TrainerState(1, 1))
    protocol.serve_weights()
    assert protocol.in_pass and given == [0]
    protocol = overlapping(max_age=7)[0]
    protocol.visit(TrainerState(0, 0))
    protocol.serve_weights()
    protocol.held = True
    assert not protocol.may_begin() and not protocol.wants_weights
