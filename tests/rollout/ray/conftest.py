"""A cluster of three nodes on this machine, each with room for two engines, and the model of the engines."""

import os

import pytest
from tests.builders import random_model

STORE = 80 << 20  # bytes of a node's object store: Ray's least is 75 MiB


class Nodes:
    """A Ray cluster of its own, whose nodes come and go."""

    def __init__(self, count):
        from ray.cluster_utils import Cluster

        self._cluster = Cluster(
            initialize_head=True,
            head_node_args={"num_cpus": 2, "include_dashboard": False, "object_store_memory": STORE},
        )
        self.head = self._cluster.head_node
        self.others = [self.add() for _ in range(count - 1)]

    @property
    def address(self):
        return self._cluster.address

    def add(self, **environment):
        variables = {"env_vars": environment} if environment else {}
        return self._cluster.add_node(num_cpus=2, object_store_memory=STORE, **variables)

    def remove(self, node):
        self._cluster.remove_node(node, allow_graceful=False)

    def close(self):
        self._cluster.shutdown()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("model")
    random_model().save_pretrained(made)
    return str(made)


@pytest.fixture(scope="module")
def nodes():
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    made = Nodes(3)
    yield made
    made.close()
