"""Small runs in virtual time."""

from bapo_lightning.data.rollouts.regime import Regime
from bapo_lightning.extras.simulation.fleet import EngineTimes
from bapo_lightning.extras.simulation.lengths import length_table
from bapo_lightning.extras.simulation.run import Setting, VirtualRun
from bapo_lightning.extras.simulation.times import ServiceTimes

LONGEST = 8


def setting(**options):
    regime = {"name": "test", "epochs": 1, "minibatches": 4, "max_new_tokens": LONGEST}
    regime |= {key: options.pop(key) for key in list(options) if key in Regime.__slots__}
    base = {"group_size": 2, "groups_per_batch": 4, "num_batches": 6, "is_endless": False}
    lengths = options.pop("lengths", length_table("constant", LONGEST, LONGEST, 0.0))
    return Setting(Regime(**regime), **{**base, **options}, lengths=lengths)


def times(update=1.0, step=1.0, sync=0.0, reward=0.0, copies=1):
    return ServiceTimes(copies, EngineTimes(step), lambda responses: update, sync, reward)


def simulated(service=None, schedule=None, **options):
    run = VirtualRun(setting(**options), service or times(), schedule)
    run.run()
    return run
