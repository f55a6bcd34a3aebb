"""Decoder layers that are checkpointed, compute in bfloat16, or are compiled."""

import copy
from collections import Counter

import pytest
import torch
from tests.builders import random_policy, stale_batch
from tests.configuration.compositions import found
from tests.modules.policy.families import family_folder, family_model
from torch.utils._python_dispatch import TorchDispatchMode

from bapo_lightning.modules.policy.factory import PRODUCTS, build_policy, checkpoint_layers, decoder_layers
from bapo_lightning.modules.policy.options import LoraOptions, ModelOptions
from bapo_lightning.modules.policy.policy import Policy
from bapo_lightning.system.host import missing_to_build

CHECKPOINTING = (False, True, "selective")
ROUNDING = 0.2  # nats: what a proof of a sync allows for
KINDS = pytest.mark.parametrize(
    ("family", "lora", "packing"),
    [("llama", None, "none"), ("qwen2", LoraOptions(2, 4), "padding_free"), ("qwen3", None, "padding_free"),
     ("qwen3", LoraOptions(2, 4), "none")],
)  # fmt: skip


def batch_for(family, num_groups=2, seed=0):
    return stale_batch(Policy(family_model(family), 1.0), num_groups=num_groups, seed=seed)


def scored(policy, batch):
    """Log-probs of a batch as an update scores it, and by name the gradients of their weighted sum."""
    policy.zero_grad()
    logps = []
    for micro_batch in batch.split(100_000, batch.response_mask / batch.num_tokens, policy.layout):
        logp, entropy = policy(micro_batch)
        assert logp.dtype == entropy.dtype == torch.float32
        (micro_batch.weight * micro_batch.advantage * logp).sum().backward()
        logps.append(logp.detach())
    gradients = {name: each.grad for name, each in policy.named_parameters() if each.grad is not None}
    return torch.cat(logps), {name: gradient.clone() for name, gradient in gradients.items()}


def cosine(one, other):
    one, other = (torch.cat([each.flatten() for each in gradients.values()]) for gradients in (one, other))
    assert one.dtype == other.dtype == torch.float32
    return float(torch.cosine_similarity(one, other, dim=0))


def built(path, packing="none", **options):
    torch.manual_seed(0)  # of adapters
    return build_policy(ModelOptions(path, packing=packing, **options), 1.0)


@KINDS
def test_checkpointing_changes_no_gradient_in_eval_mode(family, lora, packing, tmp_path):
    path, batch = family_folder(family, tmp_path), batch_for(family)
    policies = [built(path, packing, lora=lora, activation_checkpointing=kept) for kept in CHECKPOINTING]
    (_, plain), *others = (scored(policy, batch) for policy in policies)
    assert not any(policy.model.training for policy in policies) and plain
    for _, checkpointed in others:
        assert plain.keys() == checkpointed.keys()
        assert all(map(torch.equal, plain.values(), checkpointed.values()))


def test_a_layer_is_computed_again_in_the_backward_pass_and_only_there():
    model = family_model("llama")
    layers = decoder_layers(model)
    calls = []
    for layer in layers:
        layer.mlp.register_forward_pre_hook(lambda *_: calls.append(1))
    checkpoint_layers(layers)
    ids = torch.arange(8)[None]
    with torch.no_grad():
        model(ids)
    assert len(calls) == 2
    loss = model(ids).logits.sum()
    assert len(calls) == 4
    loss.backward()
    assert len(calls) == 6


def test_less_is_kept_for_the_backward_pass():
    def kept(model):
        sizes = []
        with torch.autograd.graph.saved_tensors_hooks(
            lambda tensor: sizes.append(tensor.numel()) or tensor, lambda tensor: tensor
        ):
            model.model(torch.arange(16)[None])
        return sum(sizes)

    plain, checkpointed = family_model("llama"), family_model("llama")
    checkpoint_layers(decoder_layers(checkpointed))
    assert kept(checkpointed) < kept(plain) / 4


class Counts(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.found = Counter()

    def __torch_dispatch__(self, operator, types, args=(), kwargs=None):
        self.found[operator.name()] += 1
        return operator(*args, **(kwargs or {}))


def test_selective_checkpointing_computes_no_product_and_no_attention_again():
    def counted(kept):
        model = family_model("llama")
        if kept:
            checkpoint_layers(decoder_layers(model), kept == "selective")
        with Counts() as counts:
            model.model(torch.arange(16)[None], use_cache=False)[0].sum().backward()
        return counts.found

    plain, whole, selective = map(counted, CHECKPOINTING)
    products = [name for name in plain if name in PRODUCTS]
    assert len(products) >= 2
    assert all(selective[name] == plain[name] < whole[name] for name in products)
    assert plain["aten::silu"] < selective["aten::silu"] == whole["aten::silu"]


def test_only_the_layers_that_are_given_are_checkpointed_and_a_copy_has_weights_of_its_own():
    model, plain = family_model("llama"), family_model("llama")
    kind = type(decoder_layers(plain)[0])
    checkpoint_layers(decoder_layers(model))
    assert [name for name, _ in model.named_parameters()] == [name for name, _ in plain.named_parameters()]
    for layer in decoder_layers(model):
        assert isinstance(layer, kind) and type(layer) is not kind and type(layer).__name__ == kind.__name__
    assert all(type(layer) is kind for layer in decoder_layers(plain))
    twin, ids = copy.deepcopy(model), torch.arange(4)[None]
    with torch.no_grad():
        assert torch.equal(model(ids).logits, plain(ids).logits)
        for changed in (twin, plain):
            decoder_layers(changed)[0].mlp.down_proj.weight.zero_()
        assert torch.equal(twin(ids).logits, plain(ids).logits)
        assert not torch.equal(twin(ids).logits, model(ids).logits)


@KINDS
def test_scores_are_rounded_and_weights_gradients_and_results_stay_float32(family, lora, packing, tmp_path):
    policy, batch = built(family_folder(family, tmp_path), packing, lora=lora), batch_for(family)
    exact, expected = scored(policy, batch)
    policy.mix_precision()
    mixed, gradients = scored(policy, batch)
    assert 0 < float((mixed - exact).abs().max()) < ROUNDING
    assert {each.dtype for each in policy.parameters()} == {torch.float32}
    assert cosine(gradients, expected) > 0.99


def test_checkpointed_layers_round_as_others_do(tmp_path):
    path, batch = family_folder("llama", tmp_path), batch_for("llama")
    policies = [built(path, activation_checkpointing=kept) for kept in CHECKPOINTING]
    for policy in policies:
        policy.mix_precision()
    (logp, gradients), *others = (scored(policy, batch) for policy in policies)
    for again, gradients_again in others:
        assert torch.equal(logp, again)
        assert gradients.keys() == gradients_again.keys()
        assert all(map(torch.equal, gradients.values(), gradients_again.values()))


def test_a_reference_rounds_as_its_policy_does():
    policy, reference = random_policy(), random_policy()
    policy.keep_reference(reference)
    policy.mix_precision()
    assert reference.is_mixed


def test_scoring_rollouts_equals_the_pass_of_an_update_to_the_bit():
    policy = random_policy()
    policy.mix_precision()
    batch = stale_batch(policy, num_groups=2)
    rollouts = [sample.rollout for group in batch.groups for sample in group.samples]
    lists = policy.response_logprobs(rollouts, 100_000)
    in_update, _ = scored(policy, batch)
    assert sorted(value for found in lists for value in found) == sorted(in_update.tolist())  # rows by length


@pytest.mark.slow
@pytest.mark.drill
@pytest.mark.parametrize(("packing", "is_mixed", "options"), [
    ("none", False, {}),
    ("padding_free", True, {"lora": LoraOptions(2, 4), "activation_checkpointing": True}),
    ("none", False, {"activation_checkpointing": "selective"}),
], ids=["padded", "packed, mixed, lora, checkpointed", "selective"])  # fmt: skip
def test_compiled_layers_compute_the_same_for_batches_of_any_shape(packing, options, is_mixed, tmp_path):
    if missing_to_build("C++") is not None:  # such a machine refuses the run
        assert any("model.compile=true needs" in problem for problem in found("model.compile=true"))
        return
    path = family_folder("qwen2", tmp_path)
    policies = [built(path, packing, compile=compile, **options) for compile in (False, True)]
    for policy in policies if is_mixed else ():
        policy.mix_precision()
    assert policies[0].state_dict().keys() == policies[1].state_dict().keys()
    torch._dynamo.reset()
    atol, alike = (3e-2, 0.99) if is_mixed else (1e-5, 1 - 1e-6)
    for number in range(7):
        batch = batch_for("qwen2", num_groups=1 + number, seed=number)
        # the first batch has one static shape, the second one shows which sizes vary
        with torch._dynamo.config.patch(error_on_recompile=number > 3):
            (plain, gradient), (compiled, again) = (scored(policy, batch) for policy in policies)
            torch.testing.assert_close(compiled, plain, rtol=0, atol=atol)
            assert cosine(gradient, again) > alike
            with torch.no_grad():
                policies[1].response_logprobs([batch.groups[0].samples[0].rollout], 1000)
