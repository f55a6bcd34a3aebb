import io

import pytest
import torch
from peft import LoraConfig, get_peft_model
from tests.builders import stale_batch
from tests.modules.policy.families import adapted, family_folder
from transformers import AutoModelForCausalLM

from bapo_lightning.modules.policy.factory import build_policy
from bapo_lightning.modules.policy.lora import is_adapted
from bapo_lightning.modules.policy.options import LoraOptions, ModelOptions
from bapo_lightning.rollout.engine import Wanted
from bapo_lightning.system.errors import ConfigError


@pytest.fixture
def folder(tmp_path):
    return family_folder("qwen2", tmp_path)


def test_additions_are_zero_at_first_and_alone_are_trained(folder):
    plain, policy = (build_policy(ModelOptions(folder, lora=lora), 1.0) for lora in (None, LoraOptions(4, 8)))
    ids = torch.arange(10)[None]
    assert torch.equal(plain.model(ids).logits, policy.model(ids).logits)
    trained = [name for name, parameter in policy.named_parameters() if parameter.requires_grad]
    assert len(trained) == 2 * 7 * 2 and all(".lora_" in name for name in trained)
    assert len(policy.trained_parameters()) == len(trained)
    assert not policy.model.training


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"])
def test_merged_weights_are_those_of_pefts_merge_and_unload_to_the_bit(family, dtype, tmp_path):
    policy = adapted(family_folder(family, tmp_path), dtype)
    model = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=getattr(torch, dtype))
    reference = get_peft_model(model, LoraConfig(r=4, lora_alpha=8, target_modules="all-linear"))
    own = {name: parameter for name, parameter in policy.model.named_parameters() if ".lora_" in name}
    with torch.no_grad():
        for name, parameter in reference.named_parameters():
            if ".lora_" in name:
                parameter.copy_(own[name.removeprefix("base_model.model.")])
    expected = dict(reference.merge_and_unload().named_parameters())
    found = dict(policy.named_weights())
    assert list(found) == list(expected)
    for name, weight in found.items():
        assert weight.dtype == expected[name].dtype and torch.equal(weight, expected[name]), name


def test_the_share_of_an_update_that_rounding_keeps_is_reported(folder):
    policy = adapted(folder, dtype="bfloat16")
    start = {name: weight for name, weight in policy.named_weights(Wanted("split")) if ".lora_" not in name}
    with torch.no_grad():
        for parameter in policy.trained_parameters():
            parameter.mul_(0.03)  # of both factors: the products are some tenths of a last bit
    exact = dict(policy.named_weights(Wanted(dtype="float32")))
    assert policy.update_kept == pytest.approx(1, abs=1e-4)
    merged = dict(policy.named_weights())
    kept = whole = 0.0
    for name, weight in exact.items():
        update = weight - start[name].float()
        kept += float(((merged[name].float() - start[name].float()) * update).sum())
        whole += float((update * update).sum())
    assert policy.update_kept == pytest.approx(kept / whole, rel=1e-3) and 0.05 < policy.update_kept < 0.95
    assert list(policy.named_weights(Wanted("adapters"))) and policy.update_kept == pytest.approx(1, abs=1e-3)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_factors_come_scaled_after_the_weights_that_they_add_to(dtype, folder):
    policy = adapted(folder, targets=("q_proj", "down_proj"))
    whole = dict(policy.named_weights(Wanted(dtype="float32")))
    split = dict(policy.named_weights(Wanted("split", dtype)))
    assert policy.update_kept == pytest.approx(1, abs=1e-3)
    assert list(split)[: len(whole)] == list(whole)
    assert list(split)[len(whole) :] == [name for name, _ in policy.named_weights(Wanted("adapters", dtype))]
    for layer in (name.removesuffix(".weight") for name in whole):
        if f"{layer}.lora_A.weight" in split:
            down, up = (split.pop(f"{layer}.lora_{part}.weight").float() for part in "AB")
            found = split[f"{layer}.weight"].float() + up @ down
            torch.testing.assert_close(found, whole[f"{layer}.weight"], atol=1e-2, rtol=1e-2)
    assert list(split) == list(whole)
    adapted_names = {name.split(".lora_")[0] for name, _ in policy.named_weights(Wanted("adapters"))}
    assert {name.rpartition(".")[2] for name in adapted_names} == {"q_proj", "down_proj"}
    assert {weight.dtype for weight in split.values()} == {getattr(torch, dtype)}


def test_in_mixed_precision_adapters_take_inputs_as_they_are_with_the_same_results(folder):
    policy = adapted(folder, dtype="bfloat16")
    batch = stale_batch(policy)
    (micro_batch,) = batch.split(10**6, batch.response_mask.float())
    exact = policy(micro_batch)[0]
    policy.mix_precision()
    layers = [layer for layer in policy.model.modules() if is_adapted(layer)]
    results = []
    for casts in (True, False):
        for layer in layers:
            assert not layer.cast_input_dtype_enabled
            layer.cast_input_dtype_enabled = casts
        policy.zero_grad()
        logp, *_ = policy(micro_batch)
        logp.sum().backward()
        gradients = [parameter.grad.clone() for parameter in policy.trained_parameters()]
        results.append([logp.detach(), *gradients])
        for layer in layers:
            layer.cast_input_dtype_enabled = False
    assert all(torch.equal(left, right) for left, right in zip(*results, strict=True))
    assert (results[1][0] - exact).abs().mean() < 0.05


def test_the_state_dict_holds_the_adapters_alone_and_brings_them_back_exactly(folder):
    policy = adapted(folder)
    state = policy.state_dict()
    assert set(state) == {name for name, parameter in policy.named_parameters() if parameter.requires_grad}
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    other = build_policy(ModelOptions(folder, lora=LoraOptions(4, 8)), 1.0)
    other.load_state_dict(torch.load(file, weights_only=True))
    for (name, left), (_, right) in zip(policy.named_weights(), other.named_weights(), strict=True):
        assert torch.equal(left, right), name
    state.pop(next(iter(state)))
    with pytest.raises(RuntimeError, match="Missing key"):
        policy.load_state_dict(state)


@pytest.mark.parametrize(("targets", "message"), [
    (("query",), "target_modules=.'query'.*not found.*write all-linear"),
    (("lm_head",), "head and embeddings cannot be adapted"),
    (("embed_tokens", "q_proj"), "head and embeddings cannot be adapted"),
])  # fmt: skip
def test_layers_that_cannot_be_adapted_are_refused(targets, message, folder):
    with pytest.raises(ConfigError, match=message):
        adapted(folder, targets=targets)
