"""Sizes that follow from a config.json are those of the model that transformers builds from it."""

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from bapo_lightning.errors import DataError
from bapo_lightning.plan.model_shape import model_shape

SMALL = {
    "hidden_size": 64,
    "intermediate_size": 160,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 300,
}
R1_DISTILL_QWEN_7B = {
    "model_type": "qwen2",
    "hidden_size": 3584,
    "intermediate_size": 18944,
    "num_hidden_layers": 28,
    "num_attention_heads": 28,
    "num_key_value_heads": 4,
    "vocab_size": 152064,
}


def built(family, **options):
    config = AutoConfig.for_model(family, **{**SMALL, **options})
    with torch.device("meta"):
        return model_shape(config.to_dict()), AutoModelForCausalLM.from_config(config)


@pytest.mark.parametrize(
    ("family", "options"),
    [
        ("llama", {}),
        ("llama", {"tie_word_embeddings": True}),
        ("llama", {"attention_bias": True, "mlp_bias": True, "head_dim": 32}),
        ("mistral", {"head_dim": 24}),
        ("qwen2", {"tie_word_embeddings": True}),
        ("qwen3", {"head_dim": 32}),
        ("qwen3", {"attention_bias": True}),
    ],
)
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


def test_known_models_have_their_published_number_of_weights():
    assert model_shape(R1_DISTILL_QWEN_7B).num_parameters == 7_615_616_512


def test_a_token_of_the_cache_takes_a_key_and_a_value_in_every_layer():
    assert model_shape(R1_DISTILL_QWEN_7B).kv_bytes_per_token(2) == 2 * 28 * 4 * 128 * 2 == 57_344


def test_qwen3_has_heads_of_128_where_nothing_is_said():
    assert model_shape({"model_type": "qwen3", **SMALL}).head_size == 128


def test_another_architecture_is_refused():
    with pytest.raises(
        DataError,
        match="model_type=mamba cannot be planned for: its sizes are known for llama, mistral, qwen2, qwen3 "
        "only",
    ):
        model_shape({"model_type": "mamba"})


def test_missing_sizes_are_named():
    with pytest.raises(DataError, match="lacks intermediate_size, vocab_size"):
        model_shape(
            {"model_type": "llama", "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1}
        )
