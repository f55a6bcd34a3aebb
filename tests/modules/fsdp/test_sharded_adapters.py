"""Adapters and checkpointed layers under FSDP2, on two real gloo ranks."""

import torch
import torch.distributed as dist
from tests.builders import stale_batch
from tests.commands import start_ranks
from tests.modules.policy.families import family_folder, family_model
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from bapo_lightning.modules.policy.factory import build_policy, decoder_layers
from bapo_lightning.modules.policy.options import LoraOptions, ModelOptions
from bapo_lightning.modules.policy.policy import Policy
from bapo_lightning.ranks.collectives import full_tensor
from bapo_lightning.ranks.launch import free_port


def options(folder):
    return ModelOptions(
        str(folder), packing="padding_free", activation_checkpointing=True, lora=LoraOptions(4, 8)
    )


def make_ready(policy):
    """Let the adapters add something; returns what to score."""
    generator = torch.Generator().manual_seed(1)
    batch = stale_batch(Policy(family_model("qwen2"), 1.0), num_groups=2)
    with torch.no_grad():
        for parameter in policy.trained_parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.1)
    return batch


def gradients(policy, batch):
    for micro_batch in batch.split(100, batch.response_mask / batch.num_tokens, policy.layout):
        logp, _ = policy(micro_batch)
        (micro_batch.weight * micro_batch.advantage * logp).sum().backward()
    return {
        name: full_tensor(parameter.grad)
        for name, parameter in policy.named_parameters()
        if parameter.requires_grad
    }


def on_rank(rank, port, folder):
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
    policy = build_policy(options(folder), 1.0)
    batch = make_ready(policy)
    mesh = init_device_mesh("cpu", (2,))
    for layer in decoder_layers(policy.model):
        fully_shard(layer, mesh=mesh)
    found = {"gradients": gradients(policy, batch)}
    with torch.inference_mode():  # in which vLLM asks for them
        found["weights"] = {name: weight.clone() for name, weight in policy.named_weights()}
    torch.save(found, folder / f"{rank}.pt")
    dist.destroy_process_group()


def test_gradients_and_merged_weights_of_two_ranks_are_those_of_one_process(tmp_path):
    family_folder("qwen2", tmp_path)
    port = free_port()
    start_ranks(on_rank, args=(port, tmp_path), nprocs=2)
    policy = build_policy(options(tmp_path), 1.0)
    batch = make_ready(policy)
    expected, weights = gradients(policy, batch), dict(policy.named_weights())
    for rank in range(2):
        found = torch.load(tmp_path / f"{rank}.pt")
        assert found["gradients"].keys() == expected.keys()
        for name, gradient in expected.items():
            assert (found["gradients"][name] - gradient).norm() <= 1e-5 * gradient.norm(), name
        assert list(found["weights"]) == list(weights)
        assert all(torch.equal(found["weights"][name], weight) for name, weight in weights.items())
