"""What a policy is built of, that it scores what the model's own logits say, and which models are refused."""

import itertools
import json
import time

import pytest
import torch
from pydantic import TypeAdapter, ValidationError
from tests.builders import random_model
from tests.modules.policy.families import FAMILIES, SIZES, family_folder, family_model
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM, NemotronConfig, Qwen2Config

from bapo_lightning.configuration.sections import Model
from bapo_lightning.modules.policy import options
from bapo_lightning.modules.policy.factory import build_policy, check_scores, decoder_layers
from bapo_lightning.modules.policy.options import LoraOptions, ModelOptions
from bapo_lightning.modules.policy.packing import PACKED_SDPA
from bapo_lightning.modules.policy.policy import Policy
from bapo_lightning.system.errors import ConfigError, DataError

QWEN_7B = {
    "vocab_size": 152064, "hidden_size": 3584, "intermediate_size": 18944, "num_hidden_layers": 28,
    "num_attention_heads": 28, "num_key_value_heads": 4, "tie_word_embeddings": False,
}  # fmt: skip


def test_options_come_from_the_model_node_with_its_path_resolved():
    node = {
        "path": "package://x", "made_by": "make it", "dtype": "bfloat16",
        "lora": {"rank": 4, "alpha": 8, "target_modules": ["q_proj"]},
    }  # fmt: skip
    expected = ModelOptions("/x", dtype="bfloat16", lora=LoraOptions(4, 8, ("q_proj",)))
    assert ModelOptions.of(Model.read(node), "/x") == expected


def test_a_7b_model_is_built_on_the_meta_device_without_weights(tmp_path):
    Qwen2Config(**QWEN_7B, architectures=["Qwen2ForCausalLM"]).save_pretrained(tmp_path)
    start = time.process_time()
    chosen = ModelOptions(str(tmp_path), packing="padding_free", activation_checkpointing=True)
    policy = build_policy(chosen, 1.0, on_meta=True)
    seconds = time.process_time() - start
    assert sum(parameter.numel() for parameter in policy.parameters()) == 7_615_616_512
    assert {parameter.device.type for parameter in policy.parameters()} == {"meta"}
    assert len(decoder_layers(policy.model)) == 28
    assert seconds < 10
    adapted = build_policy(ModelOptions(str(tmp_path), lora=LoraOptions(16, 32)), 1.0, on_meta=True)
    assert {parameter.device.type for parameter in adapted.parameters()} == {"meta"}
    assert sum(parameter.numel() for parameter in adapted.trained_parameters()) == 40_370_176


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_policy_has_the_same_names_shapes_and_dtype_with_and_without_memory(dtype, tmp_path):
    path, shapes = family_folder("llama", tmp_path), []
    for lora, on_meta in itertools.product((None, LoraOptions(2, 4)), (False, True)):
        policy = build_policy(ModelOptions(path, dtype=dtype, lora=lora), 1.0, on_meta)
        shapes.append({name: parameter.shape for name, parameter in policy.named_parameters()})
        own = {each.dtype for name, each in policy.named_parameters() if ".lora_" not in name}
        assert own == {getattr(torch, dtype)}
        assert policy.model.get_output_embeddings().weight is policy.model.get_input_embeddings().weight
        names = [name for name, *_ in policy.weight_shapes()]
        assert "model.embed_tokens.weight" in names and "lm_head.weight" not in names, "it is tied"
        assert not policy.model.training and not policy.model.config.use_cache
    assert shapes[0] == shapes[1] and shapes[2] == shapes[3]


def test_the_kernel_is_the_models_own_unless_chosen(tmp_path):
    sizes = {"num_hidden_layers": 1, "hidden_size": 32, "intermediate_size": 32, "num_attention_heads": 2}
    LlamaConfig(**sizes).save_pretrained(tmp_path)

    def kernel(**options):
        policy = build_policy(ModelOptions(str(tmp_path), **options), 1.0, on_meta=True)
        return policy.model.config._attn_implementation

    assert kernel() == kernel(attention="sdpa") == "sdpa"
    flex = {"attention": "flex_attention"}
    assert kernel(**flex) == kernel(**flex, packing="padding_free") == "flex_attention"
    assert kernel(packing="padding_free") == kernel(packing="padding_free", attention="sdpa") == "packed_sdpa"


def test_code_that_a_models_folder_brings_is_neither_run_nor_asked_about(tmp_path, monkeypatch):
    canary = tmp_path / "ran"
    folder = tmp_path / "model"
    family_model("llama").save_pretrained(folder)
    (folder / "own.py").write_text(f"open({str(canary)!r}, 'w')\n")
    config = json.loads((folder / "config.json").read_text())
    mine = {"AutoConfig": "own.OwnConfig", "AutoModelForCausalLM": "own.OwnModel"}
    (folder / "config.json").write_text(json.dumps(config | {"model_type": "own", "auto_map": mine}))
    monkeypatch.setattr("builtins.input", lambda *_: "y")
    with pytest.raises(DataError, match=r"could not be loaded .*its own code"):
        build_policy(ModelOptions(str(folder)), 1.0)
    assert not canary.exists()


@pytest.mark.parametrize("kernel", ["sdpa", PACKED_SDPA])
@pytest.mark.parametrize("family", FAMILIES)
def test_known_families_pass_and_keep_their_kernel(family, kernel):
    model = family_model(family)
    model.set_attn_implementation(kernel)
    check_scores(model)
    assert model.config._attn_implementation == kernel


def test_a_model_whose_layers_do_not_take_the_layout_of_packing_is_refused_in_one_sentence(tmp_path):
    AutoModelForCausalLM.from_config(NemotronConfig(**SIZES)).save_pretrained(tmp_path)
    with pytest.raises(ConfigError, match=r"NemotronForCausalLM does not take .* model\.packing=none"):
        build_policy(ModelOptions(str(tmp_path), packing="padding_free"), 1.0)
    build_policy(ModelOptions(str(tmp_path)), 1.0)


@pytest.mark.parametrize("packing", ["none", "padding_free"])
def test_a_head_that_does_more_than_a_product_is_refused_at_once(packing, tmp_path, monkeypatch):
    def halved(model, *args, **kwargs):
        output = forward(model, *args, **kwargs)
        output.logits = output.logits / 2
        return output

    forward = LlamaForCausalLM.forward
    monkeypatch.setattr(LlamaForCausalLM, "forward", halved)
    with pytest.raises(ConfigError, match=r"token scores of LlamaForCausalLM would be .* nats off"):
        build_policy(ModelOptions(family_folder("llama", tmp_path), packing=packing), 1.0)


def test_a_model_whose_logits_are_more_than_a_product_is_refused():
    model = random_model()
    model.config.final_logit_softcapping = 30.0
    with pytest.raises(ConfigError, match=r"final_logit_softcapping=30.0"):
        Policy(model, 1.0)


@pytest.mark.parametrize("changed", [
    {"dtype": "float16"}, {"attention": "fast"}, {"packing": "dense"}, {"liger": "maybe"},
    {"lora": {"rank": 0, "alpha": 2}}, {"lora": {"rank": 1, "alpha": 2, "target_modules": []}},
    {"lora": {"rank": 1, "alpha": 2, "target_modules": "q_proj"}},
])  # fmt: skip
def test_options_that_cannot_be_are_refused(changed):
    with pytest.raises(ValidationError):
        TypeAdapter(ModelOptions).validate_python({"path": "owner/name", **changed})


@pytest.mark.parametrize(("liger", "changed", "found"), [
    ("auto", {}, True), ("auto", {"on_gpu": False}, False), ("auto", {"package": None}, False),
    ("auto", {"compiler": "a C compiler"}, False), ("auto", {"compile": True}, False),
    (True, {"on_gpu": False, "package": None}, True), (False, {}, False),
])  # fmt: skip
def test_ligers_kernels_are_taken_if_they_can_be_and_are_wanted(liger, changed, found, monkeypatch):
    there = {"on_gpu": True, "package": "spec", "compiler": None, "compile": False} | changed
    monkeypatch.setattr(options, "find_spec", lambda name: there["package"])
    monkeypatch.setattr(options, "missing_to_build", lambda language: there["compiler"])
    section = {"path": "owner/name", "liger": liger, "compile": there["compile"]}
    assert ModelOptions.of(section, "folder", there["on_gpu"]).liger is found


def test_head_and_embeddings_cannot_be_adapted():
    (problem,) = LoraOptions.problems({"target_modules": ["q_proj", "lm_head"]})
    assert problem == "target_modules: lm_head cannot be adapted, its weights are read directly; leave it out"
    assert list(LoraOptions.problems({"target_modules": "all-linear"})) == []
