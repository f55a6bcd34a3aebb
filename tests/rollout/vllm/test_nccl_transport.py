"""What of the NCCL transport can be seen without a GPU: its configuration, and that both channels of its
weights agree.
"""

import torch
from tests.builders import random_policy
from tests.configuration.compositions import found

from bapo_lightning.rollout.engine import Wanted
from bapo_lightning.rollout.vllm.nccl import StreamedWeights


def test_the_shipped_configuration_passes():
    assert found("rollout=vllm_server", "rollout/engine/transport=nccl") == []


def test_what_is_announced_is_what_comes_every_time():
    policy = random_policy()
    for dtype in (None, "bfloat16"):
        weights = StreamedWeights(policy, Wanted(dtype=dtype))
        announced = [(meta.name, meta.dtype, meta.shape) for meta in weights.metadata()]
        for _ in range(2):
            assert [(name, weight.dtype, tuple(weight.shape)) for name, weight in weights] == announced
        assert {meta.dtype for meta in weights.metadata()} == {getattr(torch, dtype or "float32")}
    assert [name for name, _, _ in announced] == [name for name, _ in policy.named_weights()]
