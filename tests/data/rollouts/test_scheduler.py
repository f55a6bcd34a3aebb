"""What enters a rollout batch, by hand."""

from array import array

from tests.builders import group
from tests.data.rollouts.scripted import ScriptedEngine, scheduler

from bapo_lightning.data.rollouts.admission import DynamicSampling
from bapo_lightning.data.rollouts.regime import Regime
from bapo_lightning.types import FinishReason, Rollout, Segment


def response(length):
    segment = Segment(array("i", range(length)), array("f", [-1.0] * length), 0)
    return Rollout(array("i", [1]), (segment,), FinishReason.STOP)


def test_groups_of_equal_scores_fill_a_batch_without_a_gradient():
    engine = ScriptedEngine(9)
    engine.load_weights(None, 0)
    source = scheduler(
        engine,
        Regime(name="replay", epochs=1, minibatches=1, max_new_tokens=9),
        2,
        num_batches=1,
        rules={"admission": DynamicSampling(max_rounds=1)},
    )
    source.schedule(clock=0, needed=2, version=0)
    source.running.clear()
    # An overlong penalty made these advantages: both answers are wrong, and one is longer.
    equal = group("0", [response(3), response(9)], [0.0, 0.0], [1.0, -1.0])
    mixed = group("1", [response(3), response(9)], [1.0, 0.0], [1.0, -1.0])
    source.add_scored([], [equal, mixed], seconds=0.0)
    assert source.has_batch(2)
    first, second = source.take_batch(2, version=0)
    assert (first.problem.id, first.advantages) == ("1", (1.0, -1.0))
    assert (second.problem.id, second.advantages) == ("0", (0.0, 0.0))
