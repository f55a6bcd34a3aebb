import io

import pytest
import torch
from peft import LoraConfig, get_peft_model
from tests.builders import stale_batch
from tests.modules.policy.families import family_folder, family_model
from transformers import AutoModelForCausalLM

from bapo_lightning.errors import ConfigError
from bapo_lightning.modules.policy.factory import build_policy
from bapo_lightning.modules.policy.lora import is_adapted
from bapo_lightning.modules.policy.options import LoraOptions, ModelOptions
from bapo_lightning.modules.policy.policy import Policy
from bapo_lightning.rollout.engine import Wanted


def adapted(folder, family="qwen2", dtype="float32", targets="all-linear"):
    """A policy whose adapters add something."""
    policy = build_policy(
        ModelOptions(family_folder(family, folder), dtype=dtype, lora=LoraOptions(4, 8, targets)), 1.0
    )
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in policy.trained_parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.1)
    return policy


def test_additions_are_zero_at_first_and_alone_are_trained(tmp_path):
    path = family_folder("qwen2", tmp_path)
    plain, policy = (
        build_policy(ModelOptions(path), 1.0),
        build_policy(ModelOptions(path, lora=LoraOptions(4, 8)), 1.0),
    )
    ids = torch.arange(10)[None]
    assert torch.equal(plain.model(ids).logits, policy.model(ids).logits)
    trained = [name for name, parameter in policy.named_parameters() if parameter.requires_grad]
    assert len(trained) == 2 * 7 * 2 and all(".lora_" in name for name in trained)
    assert len(policy.trained_parameters()) == len(trained)
    assert not policy.model.training


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"])
def test_merged_weights_are_those_of_pefts_merge_and_unload_to_the_bit(family, dtype, tmp_path):
    policy = adapted(tmp_path, family, dtype)
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


def test_the_share_of_an_update_that_rounding_keeps_is_told(tmp_path):
    policy = adapted(tmp_path, dtype="bfloat16")
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
def test_factors_come_scaled_after_the_weights_that_they_add_to(dtype, tmp_path):
    policy = adapted(tmp_path, targets=("q_proj", "down_proj"))
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
    assert {weight.dtype for weight in split.values()} == {getattr(torch, dtype)}


def test_in_mixed_precision_adapters_take_inputs_as_they_are_with_the_same_results(tmp_path):
    policy = adapted(tmp_path, dtype="bfloat16")
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


def test_a_plain_model_with_the_merged_weights_scores_as_the_policy_does(tmp_path):
    policy = adapted(tmp_path)
    batch = stale_batch(policy)
    plain = Policy(family_model("qwen2", seed=5), 1.0)
    missing = plain.model.load_state_dict(dict(policy.named_weights()), strict=False)
    assert missing.unexpected_keys == [] and missing.missing_keys == []
    (micro_batch,) = batch.split(10**6, batch.response_mask.float())
    with torch.no_grad():
        torch.testing.assert_close(plain(micro_batch), policy(micro_batch), atol=1e-5, rtol=1e-5)


def test_the_state_dict_holds_the_adapters_alone_and_brings_them_back_exactly(tmp_path):
    policy = adapted(tmp_path)
    state = policy.state_dict()
    assert set(state) == {name for name, parameter in policy.named_parameters() if parameter.requires_grad}
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    other = build_policy(ModelOptions(str(tmp_path), lora=LoraOptions(4, 8)), 1.0)
    other.load_state_dict(torch.load(file, weights_only=True))
    for (name, left), (_, right) in zip(policy.named_weights(), other.named_weights(), strict=True):
        assert torch.equal(left, right), name


def test_a_missing_adapter_is_still_an_error(tmp_path):
    policy = adapted(tmp_path)
    state = policy.state_dict()
    state.pop(next(iter(state)))
    with pytest.raises(RuntimeError, match="Missing key"):
        policy.load_state_dict(state)


@pytest.mark.parametrize("targets", [("q_proj", "v_proj"), ("down_proj",)])
def test_chosen_layers_only_are_adapted(targets, tmp_path):
    policy = adapted(tmp_path, targets=targets)
    places = {
        name.split(".lora_")[0].rpartition(".")[2]
        for name, _ in policy.named_parameters()
        if ".lora_" in name
    }
    assert places == set(targets)


@pytest.mark.parametrize(
    ("targets", "message"),
    [
        (("query",), "target_modules=.'query'.*not found.*write all-linear"),
        (("lm_head",), "head and embeddings cannot be adapted"),
        (("embed_tokens", "q_proj"), "head and embeddings cannot be adapted"),
    ],
)
def test_layers_that_cannot_be_adapted_are_refused(targets, message, tmp_path):
    with pytest.raises(ConfigError, match=message):
        adapted(tmp_path, targets=targets)
