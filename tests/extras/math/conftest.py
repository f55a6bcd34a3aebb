import pytest

from bapo_lightning.extras.math import MathReward
from bapo_lightning.extras.math.workers.pool import VerifierPool


@pytest.fixture(scope="session")
def pool():
    """One for all tests: a start takes seconds, and the pool recovers from whatever they do to it.

    An answer has a minute: a loaded machine is no reason for another verdict.
    """
    pool = VerifierPool(num_workers=2, timeout_seconds=60.0, memory_megabytes=512)
    yield pool
    pool.close()


@pytest.fixture(scope="session")
def make_reward(pool):
    """Function that makes rewards, which share the workers."""

    def make(**options):
        reward = MathReward(**options)
        reward._pool = pool
        return reward

    return make
