"""Finds models that keep more than keys and values of the tokens they have read."""

from __future__ import annotations

from transformers import AutoModelForCausalLM, PreTrainedConfig

ATTENTION_LAYERS = ("full_attention", "sliding_attention", "chunked_attention")  # keep keys and values


def recurrent_part(config: PreTrainedConfig) -> str | None:
    """Returns the part that keeps a state, in words: `layers of type mamba`. None if only attention does."""
    others = sorted(set(getattr(config, "layer_types", None) or ()) - set(ATTENTION_LAYERS))
    if others:
        return f"layers of type {', '.join(others)}"
    model_class = AutoModelForCausalLM._model_mapping.get(type(config), None)
    return "a recurrent state" if getattr(model_class, "_is_stateful", False) else None
