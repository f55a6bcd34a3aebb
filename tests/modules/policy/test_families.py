"""Families that keep weights in other ways: fused, renamed, in buffers, transposed."""

import shutil

import pytest
import torch
from bench.family_checks import CHECKS, make, names_in, policy_of
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.conversion_mapping import get_checkpoint_conversion_mapping
from transformers.core_model_loading import PrefixChange
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from bapo_lightning.modules.policy.factory import build_policy
from bapo_lightning.modules.policy.file_names import file_parts, under_file_names, without_memory
from bapo_lightning.modules.policy.options import LoraOptions, ModelOptions
from bapo_lightning.rollout.engine import Wanted
from bapo_lightning.rollout.hf.engine import HFEngine
from bapo_lightning.system.errors import ConfigError
from bapo_lightning.tools.export.model_folder import write_model_folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = {}

    def get(family):
        if family not in made:
            made[family] = make(family, tmp_path_factory.mktemp(family) / "made")
        return made[family]

    return get


@pytest.mark.parametrize("family", ["gpt2", "gpt_neox", "qwen3_moe", "mixtral", "deepseek_v3", "glm4_moe"])
@pytest.mark.parametrize("check", ["samples (hf)", "exports"])
def test_what_an_update_changes_reaches_engine_and_files(folder, family, check, tmp_path):
    (tmp_path / "own").symlink_to(folder(family), target_is_directory=True)
    CHECKS[check](tmp_path / "own")


def shapes_of(weights):
    return {f"{name} {list(weight.shape)}" for name, weight in weights}


@pytest.mark.parametrize("family", ["llama", "gpt_neox", "qwen3_moe", "mixtral", "deepseek_v3"])
@pytest.mark.parametrize("on_meta", [False, True])
def test_weights_for_files_have_the_files_names_and_their_shapes_are_known_before(folder, family, on_meta):
    policy = build_policy(ModelOptions(str(folder(family))), 1.0, on_meta=on_meta)
    found = list(policy.named_weights(Wanted(names="files")))
    assert shapes_of(found) == names_in(folder(family)) and len(found) == policy.num_weights
    expected = [(name, shape) for name, _, shape in policy.weight_shapes()]
    assert [(name, weight.shape) for name, weight in found] == expected


def has_prefixes(family):
    conversions = get_checkpoint_conversion_mapping(family) or []
    return any(isinstance(each, PrefixChange) for each in conversions)


PREFIXED = [family for family in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES if has_prefixes(family)]
REFUSED = ["gemma3n_text"]  # for its logits, before names matter


@pytest.mark.parametrize("family", sorted({*PREFIXED} - {*REFUSED}))
def test_names_of_files_have_their_prefix_also_for_a_policy_without_weights(folder, family, tmp_path):
    shutil.copytree(folder(family), tmp_path / "own")
    file = tmp_path / "own/model.safetensors"
    plain = load_file(file)
    prefixed = {name.replace("model.", "model.language_model.", 1): each for name, each in plain.items()}
    for weights in (plain, prefixed):
        save_file(weights, file, {"format": "pt"})
        for on_meta in (False, True):
            policy = build_policy(ModelOptions(str(file.parent)), 1.0, on_meta)
            assert shapes_of(policy.named_weights(Wanted(names="files"))) == names_in(file.parent)


@pytest.mark.parametrize("family", ["deepseek_v3", "ernie4_5_moe", "minimax_m2", "apertus"])
def test_an_export_has_the_precisions_that_save_pretrained_writes(folder, family, tmp_path):
    policy, target = build_policy(ModelOptions(str(folder(family))), 1.0), tmp_path / "out"
    wanted = Wanted(dtype="bfloat16", names="files", is_export=True)
    write_model_folder(target, str(folder(family)), policy.named_weights(wanted), "card", torch.bfloat16)
    reference = AutoModelForCausalLM.from_pretrained(folder(family), dtype="bfloat16")
    reference.save_pretrained(tmp_path / "theirs")
    ours, theirs = (load_file(tmp_path / name / "model.safetensors") for name in ("out", "theirs"))
    assert ours.keys() == theirs.keys()
    assert {name: each.dtype for name, each in ours.items()} == {n: each.dtype for n, each in theirs.items()}
    assert all(torch.equal(ours[name], each) for name, each in theirs.items())


def test_only_a_part_of_the_model_waits_for_its_file_names(folder):
    policy, read = policy_of(folder("qwen3_moe")), []
    shapes = list(policy.named_weights())

    def weights():
        for name, weight in shapes:
            read.append(name)
            yield name, weight

    parts = file_parts(policy.model, without_memory(shapes))
    for name, _ in under_file_names(policy.model, weights(), parts):
        assert ".layers.0." not in name or sum(".layers.1." in each for each in read) <= 1


def test_adapters_of_conv1d_are_merged_as_they_act(folder):
    policy = policy_of(folder("gpt2"), lora=LoraOptions(4, 8))
    plain = AutoModelForCausalLM.from_pretrained(folder("gpt2"))
    plain.load_state_dict(dict(policy.named_weights()), strict=False)
    ids = torch.arange(3, 23)[None]
    with torch.no_grad():
        assert torch.allclose(plain(ids).logits, policy.model(ids).logits, atol=1e-4)


@pytest.mark.parametrize(("family", "words"), [
    ("qwen3_moe", r"experts of Qwen3MoeForCausalLM is not a linear layer; write .*=\[k_proj,.*v_proj\]"),
    ("glm4_moe", r"Glm4MoeForCausalLM is not a linear layer; write .*=\[k_proj,.*v_proj\]"),
    ("mixtral", r"gate of MixtralForCausalLM is not a linear layer; write .*=\[k_proj,.*v_proj\]"),
    ("mamba", r"'out_proj' is incompatible with Mamba.*; write .*=\[dt_proj,in_proj,x_proj\]"),
])  # fmt: skip
def test_what_cannot_be_adapted_is_refused_with_what_can_which_then_trains(folder, family, words, tmp_path):
    (tmp_path / "own").symlink_to(folder(family), target_is_directory=True)
    with pytest.raises(ConfigError, match=f"target_modules=all-linear: .*{words}"):
        CHECKS["LoRA"](tmp_path / "own")  # also trains what the refusal suggests


@pytest.mark.parametrize(("family", "words"), [
    ("qwen3_5_text", "has layers of type linear_attention"), ("jamba", "has"), ("mamba", "has"),
    ("bart", "is an encoder with a decoder"), ("gemma3", "has parts other than its language model"),
])  # fmt: skip
def test_what_the_engine_cannot_hold_is_refused_before_anything_starts(family, words, tmp_path):
    AutoConfig.for_model(family).save_pretrained(tmp_path)
    refused = f"rollout=hf cannot sample from .*{family}.*{words}.*; use a decoder-only"
    with pytest.raises(ConfigError, match=refused):
        HFEngine(str(tmp_path), device="cpu")
