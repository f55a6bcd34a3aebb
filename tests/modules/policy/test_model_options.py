"""Options of model and LoRA: annotations accept what can be trained, and `problems` names the rest."""

from typing import Any

import pytest
from pydantic import TypeAdapter, ValidationError

from bapo_lightning.modules.policy.options import LoraOptions, ModelOptions

ADAPTER = TypeAdapter(ModelOptions)


@pytest.mark.parametrize(
    "options",
    [
        {"dtype": "bfloat16", "attention": "flash_attention_2", "packing": "padding_free", "liger": True},
        {"lora": {"rank": 1, "alpha": 2, "target_modules": ["q_proj"]}},
        {"lora": {"rank": 1, "alpha": 2, "target_modules": "all-linear"}},
    ],
)
def test_what_can_be_trained_is_accepted(options: dict[str, Any]) -> None:
    ADAPTER.validate_python({"path": "owner/name", **options})


@pytest.mark.parametrize(
    "options",
    [
        {"dtype": "float16"}, {"attention": "fast"}, {"packing": "dense"}, {"liger": "maybe"},
        {"lora": {"rank": 0, "alpha": 2}}, {"lora": {"rank": 1, "alpha": 2, "target_modules": []}},
        {"lora": {"rank": 1, "alpha": 2, "target_modules": "q_proj"}},
    ],
)  # fmt: skip
def test_what_cannot_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        ADAPTER.validate_python({"path": "owner/name", **options})


def test_head_and_embeddings_cannot_be_adapted() -> None:
    assert list(LoraOptions.problems({"target_modules": ["q_proj", "lm_head"]})) == [
        "target_modules: lm_head cannot be adapted, its weights are read directly; leave it out"
    ]
    assert list(LoraOptions.problems({"target_modules": "all-linear"})) == []
