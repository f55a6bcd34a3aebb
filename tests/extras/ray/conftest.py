"""A cluster for all tests, and a fleet for those of a file, which leaves the nodes to others when it ends."""

import pytest
from tests.builders import random_policy
from tests.rollout.conftest import folder  # noqa: F401
from tests.rollout.odd_hf_engines import Uneven
from tests.tools.sweeps.pretended import wait_until


@pytest.fixture(scope="session")
def nodes():
    """A Ray cluster of three nodes on this machine, one for all tests of a process."""
    from tests.extras.ray.clusters import Nodes

    made = Nodes(3)
    yield made
    made.close()


@pytest.fixture(scope="module")
def fleet(nodes, folder):  # noqa: F811
    """An engine on each node, which leaves room for two of a quarter of a CPU."""
    from bapo_lightning.extras.ray.engine import RayEngine

    made = RayEngine(folder, Uneven, nodes.address, cpus=1.5, cpu_threads=1, requests_per_call=7)
    made.load_weights(random_policy(), version=3)
    yield made
    made.close()


@pytest.fixture
def engine(fleet):
    """The fleet, whose lost engines are replaced after the test."""

    def is_whole():
        fleet.load_weights(random_policy(), version=3)
        return fleet.take_counts()["fleet/engines"] == 3

    yield fleet
    wait_until(is_whole)
