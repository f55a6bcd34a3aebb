from typing import Any

import pytest
import torch
from pydantic import TypeAdapter, ValidationError
from tests.builders import random_model, random_policy, stale_batch

from bapo_lightning.errors import ConfigError
from bapo_lightning.modules.policy.options import LoraOptions, ModelOptions
from bapo_lightning.modules.policy.policy import Policy
from bapo_lightning.modules.schedules import linear_warmup


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_response_scores_equal_a_plain_forward_pass_row_by_row(temperature):
    policy = random_policy(temperature=temperature)
    batch = stale_batch(policy)
    for micro_batch in batch.split(100, batch.response_mask.float()):
        logp, entropy = policy(micro_batch)
        with torch.no_grad():
            full = (
                (policy.model(micro_batch.input_ids).logits / temperature)
                .log_softmax(-1)
                .flatten(0, 1)[micro_batch.index]
            )
        torch.testing.assert_close(
            logp, full.gather(-1, micro_batch.targets[:, None])[:, 0], atol=1e-5, rtol=1e-5
        )
        torch.testing.assert_close(entropy, -(full.exp() * full).sum(-1), atol=1e-5, rtol=1e-5)


def test_named_weights_are_the_models_and_hold_a_tied_head_once():
    names = [name for name, _ in random_policy().named_weights()]
    assert "model.embed_tokens.weight" in names and "lm_head.weight" not in names


def test_a_model_whose_logits_are_more_than_a_product_is_refused():
    model = random_model()
    model.config.final_logit_softcapping = 30.0
    with pytest.raises(ConfigError, match=r"final_logit_softcapping=30.0"):
        Policy(model, 1.0)


def test_warmup_rises_linearly_and_stays():
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
    schedule = linear_warmup(optimizer, warmup_updates=4)
    rates = []
    for _ in range(6):
        rates.append(schedule.get_last_lr()[0])
        optimizer.step()
        schedule.step()
    assert rates == [0.25, 0.5, 0.75, 1.0, 1.0, 1.0]


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
