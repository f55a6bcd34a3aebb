"""What a plan reckons with where a fleet samples, and which devices an engine in process has."""

import pytest
from tests.configuration.compositions import found, validated

from bapo_lightning.configuration.run_shape import engine_shape


@pytest.mark.parametrize(
    ("overrides", "gpus", "copies"),
    [
        (("rollout=ray", "rollout.engine.actors=6"), 6, 6),
        (("rollout=ray",), 4, 4),
        (
            (
                "rollout=ray_vllm",
                "rollout.engine.actors=3",
                "rollout.engine.make_engine.options.tensor_parallel_size=2",
            ),
            6,
            3,
        ),
    ],
)
def test_a_fleet_has_gpus_of_its_own_and_as_many_as_the_trainer_where_the_cluster_decides(
    overrides, gpus, copies
):
    shape = engine_shape(validated(*overrides).rollout.engine, ranks=4, stored_bytes=4)
    assert (shape.placement, shape.num_gpus, shape.num_copies) == ("apart", gpus, copies)


def test_vllm_in_the_process_of_one_rank_takes_no_gpu_that_the_trainer_was_not_given():
    (complaint,) = found("rollout=vllm", "rollout.engine.options.tensor_parallel_size=2")
    assert "tensor_parallel_size=2 does not divide 1 rank, whose GPUs vLLM shares" in complaint
    assert found("rollout=vllm_child", "rollout.engine.make_engine.options.tensor_parallel_size=2") == []


@pytest.mark.parametrize("rollout", ["vllm", "vllm_child", "ray_vllm", "vllm_server"])
def test_room_for_adapters_is_that_of_the_policys(rollout):
    inner = "rollout.engine" if rollout in ("vllm", "vllm_server") else "rollout.engine.make_engine"
    assert found(f"rollout={rollout}", "model/lora=default") == []
    assert found(f"rollout={rollout}", "model/lora=default", f"{inner}.options.lora_rank=null") == []
    (complaint,) = found(f"rollout={rollout}", f"{inner}.options.lora_rank=8")
    assert "lora_rank=8 with no model.lora" in complaint
    (complaint,) = found(f"rollout={rollout}", "model/lora=default", f"{inner}.options.lora_rank=8")
    assert "lora_rank=8 with model.lora.rank=16" in complaint
