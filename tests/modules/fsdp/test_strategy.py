"""The sharded strategy is built without knowing the ranks, and shards over all of them."""

import pytest
import torch
from hydra.utils import instantiate
from lightning.pytorch.strategies import ModelParallelStrategy

from bapo_lightning.modules.fsdp import ShardedStrategy, Sharding, by_position

NODE = {
    "_target_": "bapo_lightning.modules.fsdp.ShardedStrategy",
    "reduce_every_micro_batch": True,
    "sharded_checkpoints": False,
}


def test_hydra_builds_it_from_its_options() -> None:
    strategy = instantiate(NODE)
    assert isinstance(strategy, ShardedStrategy)
    assert strategy.sharding == Sharding(reduce_every_micro_batch=True)


def test_it_shards_over_the_ranks_of_all_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = []

    def setup_environment(self: ModelParallelStrategy) -> None:
        sizes.append((self._data_parallel_size, self._tensor_parallel_size))

    monkeypatch.setattr(ModelParallelStrategy, "setup_environment", setup_environment)
    strategy = ShardedStrategy()
    strategy.num_nodes, strategy.parallel_devices = 3, [torch.device("cpu")] * 2
    strategy.setup_environment()
    assert sizes == [(6, 1)]


def test_optimizer_state_by_names_becomes_state_by_index() -> None:
    state = {"state": {"b": 1, "a": 2}, "param_groups": [{"lr": 0.1, "params": ["a", "b"]}]}
    by_position(state, ["a", "b"])
    assert state == {"state": {1: 1, 0: 2}, "param_groups": [{"lr": 0.1, "params": [0, 1]}]}
