"""Sizes that follow from a config.json are those of the model that transformers builds from it."""

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from bapo_lightning.plan.model_shape import model_shape
from bapo_lightning.system.errors import DataError

SMALL = {
    "hidden_size": 64, "intermediate_size": 160, "num_hidden_layers": 3, "num_attention_heads": 4,
    "num_key_value_heads": 2, "vocab_size": 300,
}  # fmt: skip
R1_DISTILL_QWEN_7B = {
    "model_type": "qwen2", "hidden_size": 3584, "intermediate_size": 18944, "num_hidden_layers": 28,
    "num_attention_heads": 28, "num_key_value_heads": 4, "vocab_size": 152064,
}  # fmt: skip


def built(family, **options):
    config = AutoConfig.for_model(family, **{**SMALL, **options})
    with torch.device("meta"):
        return model_shape(config.to_dict()), AutoModelForCausalLM.from_config(config)


@pytest.mark.parametrize(("family", "options"), [
    ("llama", {}),
    ("llama", {"tie_word_embeddings": True}),
    ("llama", {"attention_bias": True, "mlp_bias": True, "head_dim": 32}),
    ("mistral", {"head_dim": 24}),
    ("qwen2", {"tie_word_embeddings": True}),
    ("qwen3", {"head_dim": 32}),
    ("qwen3", {"attention_bias": True}),
])  # fmt: skip
def test_it_counts_the_weights_that_transformers_makes(family, options):
    shape, model = built(family, **options)
    assert shape.num_parameters == sum(parameter.numel() for parameter in model.parameters())
    (layer, *_) = model.get_submodule("model.layers")
    assert shape.layer_parameters == sum(parameter.numel() for parameter in layer.parameters())


def test_the_linear_layers_are_those_of_the_model():
    shape, model = built("qwen2")
    found = {
        name.rpartition(".")[2]: (layer.in_features, layer.out_features)
        for name, layer in model.get_submodule("model.layers.0").named_modules()
        if isinstance(layer, torch.nn.Linear)
    }
    assert shape.linear_shapes == found


def test_a_known_model_has_its_published_number_of_weights_and_bytes_a_token():
    shape = model_shape(R1_DISTILL_QWEN_7B)
    assert shape.num_parameters == 7_615_616_512
    assert shape.kv_bytes_per_token(2) == 2 * 28 * 4 * 128 * 2 == 57_344


def test_qwen3_has_heads_of_128_where_nothing_is_said():
    assert model_shape({"model_type": "qwen3", **SMALL}).head_size == 128


def test_what_cannot_be_planned_for_is_named():
    known = "its sizes are known for llama, mistral, qwen2, qwen3 only"
    with pytest.raises(DataError, match=f"model_type=mamba cannot be planned for: {known}"):
        model_shape({"model_type": "mamba"})
    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1}
    with pytest.raises(DataError, match="has no intermediate_size, vocab_size"):
        model_shape({"model_type": "llama", **sizes})
