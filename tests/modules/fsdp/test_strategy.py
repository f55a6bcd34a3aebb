"""The sharded strategy is built without knowing the ranks, and shards over all of them."""

import pytest
import torch
from hydra.utils import instantiate
from lightning import LightningModule
from lightning.pytorch.strategies import ModelParallelStrategy
from tests.builders import random_policy, rollout

from bapo_lightning.data.batches.model_input import ModelInput
from bapo_lightning.modules.fsdp import ShardedStrategy, Sharding, by_position
from bapo_lightning.modules.policy.policy import Policy

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


def test_passes_compute_on_the_device_while_offloaded_weights_are_not_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The device has no memory, so the pass, which FSDP would gather weights for, notes where it was."""
    device, module = torch.device("meta"), LightningModule()
    module.policy, reference = random_policy(), random_policy()
    module.policy.keep_reference(reference)
    strategy = ShardedStrategy(cpu_offload=True)
    monkeypatch.setattr(ShardedStrategy, "root_device", device)
    strategy._lightning_module = module
    strategy.model_to_device()
    passes = []

    def forward(self: Policy, inputs: ModelInput) -> tuple[torch.Tensor, torch.Tensor]:
        passes.append((self, inputs.input_ids.device, inputs.targets.device))
        return torch.zeros(2), torch.zeros(2)

    monkeypatch.setattr(Policy, "forward", forward)
    for scores in (module.policy.response_logprobs, module.policy.reference_logprobs):
        scores([rollout([1, 2], [3, 4], [0.0, 0.0])], token_budget=8)
    assert passes == [(module.policy, device, device), (reference, device, device)]
    assert module.device == device  # of which training turns autocast off
    assert {weight.device.type for weight in module.parameters()} == {"cpu"}
