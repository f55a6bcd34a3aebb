"""What `auto` and null stand for."""

import pytest
from tests.configuration.compositions import composed

from bapo_lightning.configuration import precision
from bapo_lightning.configuration.precision import settled
from bapo_lightning.configuration.validate import validate


@pytest.fixture
def gains(monkeypatch):
    monkeypatch.setattr(precision, "_multiplies_faster", lambda accelerator: True)
    monkeypatch.setattr(precision, "SMALLEST_MODEL", 1)


def chosen(*overrides):
    """(the trainer's precision, the engine's dtype, the tolerance of a sync)"""
    plain = settled(composed(*overrides))
    engine = plain["rollout"]["engine"]
    engine = engine.get("make_engine", engine)
    dtype = engine["options"]["dtype"] if "options" in engine else engine["dtype"]
    return plain["trainer"]["precision"], dtype, plain["rollout"]["weight_sync"]["tolerance"]


def test_a_small_model_computes_in_float32_on_any_machine(monkeypatch):
    monkeypatch.setattr(precision, "_multiplies_faster", lambda accelerator: True)
    assert chosen() == ("32-true", "float32", 1e-3)


@pytest.mark.parametrize(("overrides", "expected"), [
    ("", ("bf16-mixed", "bf16-mixed", 0.2)),
    ("rollout=hf_child", ("bf16-mixed", "bf16-mixed", 0.2)),
    ("rollout=vllm", ("bf16-mixed", "bfloat16", 0.2)),
    ("rollout=vllm_child", ("bf16-mixed", "bfloat16", 0.2)),
    ("trainer.precision=32-true", ("32-true", "float32", 1e-3)),
    ("trainer.precision=32-true rollout=vllm", ("32-true", "float32", 1e-3)),
    ("trainer.precision=32-true rollout.engine.dtype=bfloat16", ("32-true", "bfloat16", 0.2)),
    ("rollout.engine.dtype=float32", ("bf16-mixed", "float32", 0.2)),
    ("rollout.weight_sync.tolerance=0.05", ("bf16-mixed", "bf16-mixed", 0.05)),
    ("model.dtype=bfloat16", ("32-true", "float32", 0.2)),
    ("strategy=fsdp trainer.devices=2", ("bf16-mixed", "bf16-mixed", 0.2)),
])  # fmt: skip
def test_engine_and_tolerance_follow_the_trainer(gains, overrides, expected):
    assert chosen(*overrides.split()) == expected
    config = validate(composed(*overrides.split()))
    assert config.plain["trainer"]["precision"] == expected[0]


def test_a_plan_is_for_gpus_whatever_this_machine_has(monkeypatch):
    monkeypatch.setattr(precision, "_multiplies_faster", lambda accelerator: False)
    monkeypatch.setattr(precision, "SMALLEST_MODEL", 1)
    assert validate(composed()).compute_dtype == "float32"
    assert validate(composed(), "run").compute_dtype == "bfloat16"


def test_what_is_wrong_otherwise_is_left_to_the_rules():
    for broken in ({}, {"trainer": 3, "rollout": []}, {"trainer": {"precision": "auto"}, "model": None}):
        settled(broken)
