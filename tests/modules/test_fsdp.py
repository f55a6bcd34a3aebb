"""FSDP2, its strategy, and what every rank must find alike, on two real gloo ranks."""

from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
from hydra.utils import instantiate
from lightning import LightningModule
from lightning.pytorch.strategies import ModelParallelStrategy
from tests.builders import adaptive, module, random_policy, rollout, stale_batch
from tests.commands import start_ranks
from tests.modules.policy.families import adapted, family_folder, family_model
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor

from bapo_lightning.modules.fsdp import ShardedStrategy, Sharding, by_position, gradient_sync
from bapo_lightning.modules.policy.factory import decoder_layers
from bapo_lightning.modules.policy.log_z import LogZ
from bapo_lightning.modules.policy.policy import Policy
from bapo_lightning.modules.token_tables import token_table
from bapo_lightning.system.ranks.collectives import count_over_ranks, full_tensor
from bapo_lightning.system.ranks.launch import free_port

WAYS = (Sharding(), Sharding(reduce_every_micro_batch=True), Sharding(cpu_offload=True))
FAMILIES = {"qwen2": "model.lm_head.weight", "llama": "model.model.embed_tokens.weight"}  # the latter tied


def gradients(policy, batch, sharding=None, budget=60):
    """Gradients of at most three micro-batches, and the number of weights with a `.grad` after each."""
    micro_batches = batch.split(budget, batch.response_mask / batch.num_tokens, policy.layout)[:3]
    owner, counts = SimpleNamespace(policy=policy, sharding=sharding), []
    for number, micro_batch in enumerate(micro_batches, 1):
        with gradient_sync(owner, when=number == len(micro_batches)):
            (micro_batch.weight * micro_batch.advantage * policy(micro_batch)[0]).sum().backward()
        counts.append(sum(parameter.grad is not None for parameter in policy.parameters()))
    named = policy.named_parameters()
    return {name: full_tensor(each.grad) for name, each in named if each.requires_grad}, counts


def sharded(policy, mesh, sharding):
    sharding.shard(policy, decoder_layers(policy.model), mesh)
    return policy


def are_sharded(policy):
    model, layer = policy.model, decoder_layers(policy.model)[0].mlp.up_proj
    parts = model.get_input_embeddings(), model.get_output_embeddings(), layer
    return [isinstance(each.weight, DTensor) for each in parts]


def batch_of_ranks():
    return stale_batch(random_policy(), num_groups=3, group_size=2)


def micro_batch(batch):
    return batch.split(10**6, batch.response_mask / batch.num_tokens)[0]


def between_passes(policy, batch):
    """Whether embedding, head and a layer are sharded again after a forward pass, and after the last one."""
    policy(micro_batch(batch))
    between = are_sharded(policy)
    policy.response_logprobs([rollout([1, 2], [3], [0.0])], token_budget=8)
    return between, are_sharded(policy)


def whole(family):
    """A policy whose batches make use of all that reads the head's weight, and of the head for log Z."""
    torch.manual_seed(3)
    policy = Policy(family_model(family), 1.0, log_z=LogZ(32))
    policy.serve({"entropy_gradient", "mean_logp"})
    return policy


def of_all_scores(policy, batch):
    """Gradients, by name, of a loss of all scores, in the order in which they are there."""
    found, named = [], dict(policy.named_parameters())
    for name, parameter in named.items():
        parameter.register_post_accumulate_grad_hook(lambda _, name=name: found.append(name))
    policy(batch)  # without a backward pass, as in a search
    logp, entropy, _, log_z = policy(batch)
    (batch.weight * (batch.advantage * logp + 0.1 * entropy + log_z)).sum().backward()
    return {name: full_tensor(named[name].grad) for name in found}


def with_adapters(folder):
    return adapted(folder, packing="padding_free", activation_checkpointing=True)


def adapter_batch():
    return stale_batch(Policy(family_model("qwen2"), 1.0), num_groups=2)


def table_of_rank(policy, rank):
    batch = stale_batch(policy, seed=rank)
    (micro_batch,) = batch.split(10**6, batch.response_mask.float())
    with torch.no_grad():
        return token_table(policy, micro_batch, 0)


def on_rank(rank, port, folder):
    """Does on one rank what the tests look at."""
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
    mesh, batch = init_device_mesh("cpu", (2,)), batch_of_ranks()
    policy = sharded(with_adapters(folder), mesh, Sharding())
    found = {
        "ways": [gradients(sharded(random_policy(), mesh, way), batch, way) for way in WAYS],
        "between_passes": [
            between_passes(sharded(whole(each), mesh, Sharding()), batch) for each in FAMILIES
        ],
        "all scores": {
            family: [of_all_scores(sharded(whole(family), mesh, way), micro_batch(batch)) for way in WAYS]
            for family in FAMILIES
        },
        "adapters": gradients(policy, adapter_batch(), Sharding(), budget=100)[0],
    }
    with torch.inference_mode():  # in which vLLM asks for them
        found["weights"] = {name: weight.clone() for name, weight in policy.named_weights()}
    made = module(random_policy(), adaptive(target=0.52))
    found["bounds"] = list(made.bound_rule.choose([table_of_rank(made.policy, rank)]))
    found["counts"] = count_over_ranks(rank + 1, 10, device=torch.device("cpu"))
    torch.save(found, folder / f"{rank}.pt")
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ranks")
    family_folder("qwen2", folder)
    return folder


@pytest.fixture(scope="module")
def ranks(folder):
    start_ranks(on_rank, args=(free_port(), folder), nprocs=2)
    return [torch.load(folder / f"{rank}.pt") for rank in range(2)]


def test_all_ways_give_the_same_gradients_and_one_shards_them_at_once(ranks):
    (once, counts_once), (every, counts_every), (offloaded, _) = ranks[0]["ways"]
    for other in (every, offloaded):
        assert once.keys() == other.keys()
        assert all(torch.allclose(once[name], other[name], rtol=1e-5, atol=1e-7) for name in once)
    assert counts_once == [0, 0, len(once)]
    assert counts_every == [len(once)] * 3
    # The backward pass begins with the head, and would gather it again; it does not read the embedding.
    apart, shared = ranks[0]["between_passes"]
    assert apart == ([True, False, True], [True] * 3)
    assert shared == ([False, False, True], [True] * 3)


def test_gradients_and_merged_weights_of_two_ranks_are_those_of_one_process(ranks, folder):
    policy = with_adapters(folder)
    (expected, _), weights = gradients(policy, adapter_batch(), budget=100), dict(policy.named_weights())
    for found in ranks:
        assert found["adapters"].keys() == expected.keys()
        for name, gradient in expected.items():
            assert (found["adapters"][name] - gradient).norm() <= 1e-5 * gradient.norm(), name
        assert list(found["weights"]) == list(weights)
        assert all(torch.equal(found["weights"][name], weight) for name, weight in weights.items())


@pytest.mark.parametrize("family", FAMILIES)
def test_a_head_of_its_own_is_reduced_before_the_layers_and_a_shared_weight_last(ranks, family):
    expected = of_all_scores(whole(family), micro_batch(batch_of_ranks()))
    for found in ranks[0]["all scores"][family]:
        assert found.keys() == expected.keys()
        for name, gradient in expected.items():
            assert (found[name] - gradient).norm() <= 1e-5 * gradient.norm(), name
        order = list(found)
        layers = [place for place, name in enumerate(order) if ".layers." in name and "log_z" not in name]
        is_first, is_last = (
            order.index(FAMILIES[family]) < min(layers),
            order.index(FAMILIES[family]) > max(layers),
        )
        assert (is_first, is_last) == (family == "qwen2", family == "llama")


def test_two_ranks_choose_the_bounds_that_one_process_would(ranks):
    made = module(random_policy(), adaptive(target=0.52))
    whole = made.bound_rule.choose([table_of_rank(made.policy, rank) for rank in range(2)])
    assert float(whole.high) > 1.2 or float(whole.low) > 0.6, "the case must move the bounds"
    for found in ranks:
        assert [float(value) for value in found["bounds"][:2]] == [float(whole.low), float(whole.high)]
        assert found["counts"] == (3, 20)


def test_hydra_builds_the_strategy_from_its_options():
    node = {"_target_": "bapo_lightning.modules.fsdp.ShardedStrategy"}
    strategy = instantiate(node | {"reduce_every_micro_batch": True, "sharded_checkpoints": False})
    assert isinstance(strategy, ShardedStrategy)
    assert strategy.sharding == Sharding(reduce_every_micro_batch=True)


def test_it_shards_over_the_ranks_of_all_nodes(monkeypatch):
    sizes, noted = [], lambda self: sizes.append((self._data_parallel_size, self._tensor_parallel_size))
    monkeypatch.setattr(ModelParallelStrategy, "setup_environment", noted)
    strategy = ShardedStrategy()
    strategy.num_nodes, strategy.parallel_devices = 3, [torch.device("cpu")] * 2
    strategy.setup_environment()
    assert sizes == [(6, 1)]


def test_optimizer_state_by_names_becomes_state_by_index():
    state = {"state": {"b": 1, "a": 2}, "param_groups": [{"lr": 0.1, "params": ["a", "b"]}]}
    by_position(state, ["a", "b"])
    assert state == {"state": {1: 1, 0: 2}, "param_groups": [{"lr": 0.1, "params": [0, 1]}]}


def test_passes_compute_on_the_device_while_offloaded_weights_are_not_there(monkeypatch):
    """The device has no memory, so the pass, which FSDP would gather weights for, notes where it was."""
    device, owner = torch.device("meta"), LightningModule()
    owner.policy, reference = random_policy(), random_policy()
    owner.policy.keep_reference(reference)
    strategy = ShardedStrategy(cpu_offload=True)
    monkeypatch.setattr(ShardedStrategy, "root_device", device)
    strategy._lightning_module = owner
    strategy.model_to_device()
    passes = []

    def forward(self, inputs):
        passes.append((self, inputs.input_ids.device, inputs.targets.device))
        return torch.zeros(2), torch.zeros(2)

    monkeypatch.setattr(Policy, "forward", forward)
    for scores in (owner.policy.response_logprobs, owner.policy.reference_logprobs):
        scores([rollout([1, 2], [3, 4], [0.0, 0.0])], token_budget=8)
    assert passes == [(owner.policy, device, device), (reference, device, device)]
    assert owner.device == device  # of which training turns autocast off
    assert {weight.device.type for weight in owner.parameters()} == {"cpu"}
