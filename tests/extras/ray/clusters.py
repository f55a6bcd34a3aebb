"""A Ray cluster of several nodes on this machine."""

from contextlib import contextmanager, suppress

import psutil
from tests.tools.sweeps.pretended import wait_until

STORE = 80 << 20  # bytes of a node's object store: Ray's least is 75 MiB


class Nodes:
    """A cluster of its own, whose nodes come and go; each has room for two engines of a CPU."""

    def __init__(self, count):
        from ray.cluster_utils import Cluster

        from bapo_lightning.extras.ray.joining import HERE

        options = {"num_cpus": 2, "object_store_memory": STORE, **HERE}
        self._cluster = Cluster(initialize_head=True, head_node_args=options)
        self.head = self._cluster.head_node
        self.others = [self.add() for _ in range(count - 1)]

    @property
    def address(self):
        return self._cluster.address

    def add(self, num_gpus=0, **environment):
        variables = {"env_vars": environment} if environment else {}
        return self._cluster.add_node(num_cpus=2, num_gpus=num_gpus, object_store_memory=STORE, **variables)

    @contextmanager
    def one_more(self, num_gpus=0, **environment):
        """Context of a node that nobody finds afterwards, though the test fails or has removed it itself."""
        node = self.add(num_gpus, **environment)
        try:
            yield node
        finally:
            if node in self._cluster.worker_nodes:
                self.remove(node)
            self.settle()  # or the next test starts its engines there

    def settle(self):
        """Waits until the cluster knows which nodes are gone: of one that was killed it learns later."""
        count = 1 + len(self._cluster.worker_nodes)
        wait_until(lambda: sum(each["Alive"] for each in self._cluster.global_state.node_table()) == count)

    def remove(self, node):
        """Kills a node with all of its processes, which would outlive it for a moment."""
        own = processes(node)
        self._cluster.remove_node(node, allow_graceful=False)
        for process in own:
            with suppress(psutil.NoSuchProcess):
                process.kill()

    def processes(self):
        """Processes that the nodes have started."""
        nodes = [self._cluster.head_node, *self._cluster.worker_nodes]
        return [process for node in nodes for process in processes(node)]

    def close(self):
        self._cluster.shutdown()


def processes(node):
    """Processes that a node has started."""
    (raylet,) = node.all_processes["raylet"]
    return psutil.Process(raylet.process.pid).children(recursive=True)


def failing(file, problems, completions):
    """A reward that notes its calls in a file, and which workers on nodes can import."""
    with file.open("a") as notes:
        notes.write("called\n")
    raise TypeError("no such answer")
