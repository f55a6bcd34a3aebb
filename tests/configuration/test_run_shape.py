"""Which devices an engine in process has, and which adapters an engine holds."""

import pytest
from tests.configuration.compositions import found


def test_vllm_in_the_process_of_one_rank_takes_no_gpu_that_the_trainer_was_not_given():
    (complaint,) = found("rollout=vllm", "rollout.engine.options.tensor_parallel_size=2")
    assert "tensor_parallel_size=2 does not divide 1 rank, whose GPUs vLLM shares" in complaint
    assert found("rollout=vllm_child", "rollout.engine.make_engine.options.tensor_parallel_size=2") == []


@pytest.mark.parametrize("rollout", ["vllm", "vllm_child", "vllm_server"])
def test_room_for_adapters_is_that_of_the_policys(rollout):
    inner = "rollout.engine" if rollout in ("vllm", "vllm_server") else "rollout.engine.make_engine"
    assert found(f"rollout={rollout}", "model/lora=default") == []
    assert found(f"rollout={rollout}", "model/lora=default", f"{inner}.options.lora_rank=null") == []
    (complaint,) = found(f"rollout={rollout}", f"{inner}.options.lora_rank=8")
    assert "lora_rank=8 with no model.lora" in complaint
    (complaint,) = found(f"rollout={rollout}", "model/lora=default", f"{inner}.options.lora_rank=8")
    assert "lora_rank=8 with model.lora.rank=16" in complaint
