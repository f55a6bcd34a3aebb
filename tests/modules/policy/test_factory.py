import json
import time

import pytest
import torch
from tests.modules.policy.families import family_folder, family_model
from transformers import LlamaConfig, Qwen2Config

from bapo_lightning.configuration.sections import Model
from bapo_lightning.errors import ConfigError
from bapo_lightning.modules.policy.factory import build_policy, decoder_layers
from bapo_lightning.modules.policy.options import LoraOptions, ModelOptions

QWEN_7B = {
    "vocab_size": 152064, "hidden_size": 3584, "intermediate_size": 18944, "num_hidden_layers": 28,
    "num_attention_heads": 28, "num_key_value_heads": 4, "tie_word_embeddings": False,
}  # fmt: skip


def test_options_come_from_the_model_node_with_its_path_resolved():
    node = {
        "path": "package://x", "made_by": "make it", "dtype": "bfloat16",
        "lora": {"rank": 4, "alpha": 8, "target_modules": ["q_proj"]},
    }  # fmt: skip
    assert ModelOptions.of(Model.read(node), "/x") == ModelOptions(
        "/x", dtype="bfloat16", lora=LoraOptions(4, 8, ("q_proj",))
    )


def test_a_7b_model_is_built_on_the_meta_device_without_weights(tmp_path):
    Qwen2Config(**QWEN_7B, architectures=["Qwen2ForCausalLM"]).save_pretrained(tmp_path)
    start = time.process_time()
    policy = build_policy(
        ModelOptions(str(tmp_path), packing="padding_free", activation_checkpointing=True), 1.0, on_meta=True
    )
    seconds = time.process_time() - start
    assert sum(parameter.numel() for parameter in policy.parameters()) == 7_615_616_512
    assert {parameter.device.type for parameter in policy.parameters()} == {"meta"}
    assert len(decoder_layers(policy.model)) == 28
    assert seconds < 10


def test_adapters_are_built_on_the_meta_device_too(tmp_path):
    Qwen2Config(**QWEN_7B).save_pretrained(tmp_path)
    policy = build_policy(ModelOptions(str(tmp_path), lora=LoraOptions(16, 32)), 1.0, on_meta=True)
    assert {parameter.device.type for parameter in policy.parameters()} == {"meta"}
    assert sum(parameter.numel() for parameter in policy.trained_parameters()) == 40_370_176


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_weights_have_the_dtype_asked_for_and_a_tied_head_stays_tied(dtype, tmp_path):
    for on_meta in (False, True):
        policy = build_policy(ModelOptions(family_folder("llama", tmp_path), dtype=dtype), 1.0, on_meta)
        assert {parameter.dtype for parameter in policy.parameters()} == {getattr(torch, dtype)}
        assert policy.model.get_output_embeddings().weight is policy.model.get_input_embeddings().weight
        assert not policy.model.training and not policy.model.config.use_cache


def test_on_the_meta_device_names_and_shapes_are_those_of_the_loaded_model(tmp_path):
    options = ModelOptions(family_folder("qwen3", tmp_path), lora=LoraOptions(2, 4))
    loaded, empty = (build_policy(options, 1.0, on_meta) for on_meta in (False, True))
    shapes = [
        {name: parameter.shape for name, parameter in policy.named_parameters()} for policy in (loaded, empty)
    ]
    assert shapes[0] == shapes[1]


def test_the_kernel_is_the_models_own_unless_chosen(tmp_path):
    LlamaConfig(
        num_hidden_layers=1, hidden_size=32, intermediate_size=32, num_attention_heads=2
    ).save_pretrained(tmp_path)

    def kernel(**options):
        policy = build_policy(ModelOptions(str(tmp_path), **options), 1.0, on_meta=True)
        return policy.model.config._attn_implementation

    assert kernel() == kernel(attention="sdpa") == "sdpa"
    assert (
        kernel(attention="flex_attention")
        == kernel(attention="flex_attention", packing="padding_free")
        == "flex_attention"
    )
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
    with pytest.raises(ConfigError, match=r"could not be loaded .*custom code"):
        build_policy(ModelOptions(str(folder)), 1.0)
    assert not canary.exists()
