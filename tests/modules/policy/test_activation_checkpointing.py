import copy

import pytest
import torch
from tests.builders import stale_batch
from tests.modules.policy.families import family_folder, family_model
from tests.modules.policy.scoring import scored

from bapo_lightning.modules.policy.factory import build_policy, checkpoint_layers, decoder_layers
from bapo_lightning.modules.policy.options import LoraOptions, ModelOptions
from bapo_lightning.modules.policy.policy import Policy


@pytest.mark.parametrize("packing", ["none", "padding_free"])
@pytest.mark.parametrize("lora", [None, LoraOptions(2, 4)])
@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"])
def test_checkpointing_changes_no_gradient_in_eval_mode(family, lora, packing, tmp_path):
    path = family_folder(family, tmp_path)
    batch = stale_batch(Policy(family_model(family), 1.0), num_groups=2)
    found = []
    for checkpointed in (False, True):
        torch.manual_seed(0)
        policy = build_policy(
            ModelOptions(path, packing=packing, lora=lora, activation_checkpointing=checkpointed), 1.0
        )
        assert not policy.training or not policy.model.training
        found.append(scored(policy, batch)[1])
    plain, checkpointed = found
    assert plain.keys() == checkpointed.keys() and plain
    for name in plain:
        assert torch.equal(plain[name], checkpointed[name]), name


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
