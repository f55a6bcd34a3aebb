"""A Ray cluster of several nodes on this machine."""

STORE = 80 << 20  # bytes of a node's object store: Ray's least is 75 MiB
# As of a cluster that a run starts.
SYSTEM = {"enable_worker_prestart": False, "worker_niceness": 0}


class Nodes:
    """A cluster of its own, whose nodes come and go; each has room for two engines of a CPU."""

    def __init__(self, count):
        from ray.cluster_utils import Cluster

        self._cluster = Cluster(
            initialize_head=True,
            head_node_args={
                **{"num_cpus": 2, "object_store_memory": STORE, "include_dashboard": False},
                "_system_config": SYSTEM,
            },
        )
        self.head = self._cluster.head_node
        self.others = [self.add() for _ in range(count - 1)]

    @property
    def address(self):
        return self._cluster.address

    def add(self, num_gpus=0, **environment):
        variables = {"env_vars": environment} if environment else {}
        return self._cluster.add_node(num_cpus=2, num_gpus=num_gpus, object_store_memory=STORE, **variables)

    def remove(self, node):
        self._cluster.remove_node(node, allow_graceful=False)

    def close(self):
        self._cluster.shutdown()
