"""A policy whose decoder layers are compiled."""

import pytest
import torch
from tests.builders import stale_batch
from tests.configuration.compositions import found
from tests.modules.policy.families import family_folder, family_model
from tests.modules.policy.scoring import joined, scored

from bapo_lightning.host import missing_to_build
from bapo_lightning.modules.policy.factory import build_policy
from bapo_lightning.modules.policy.options import LoraOptions, ModelOptions
from bapo_lightning.modules.policy.policy import Policy

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    ("packing", "is_mixed", "options"),
    [
        ("none", False, {}),
        ("padding_free", True, {}),
        ("padding_free", True, {"lora": LoraOptions(2, 4), "activation_checkpointing": True}),
    ],
    ids=["padded", "packed, mixed", "packed, mixed, lora, checkpointed"],
)
def test_compiled_layers_compute_the_same_for_batches_of_any_shape(packing, options, is_mixed, tmp_path):
    if missing_to_build("C++") is not None:  # such a machine refuses the run
        assert any("model.compile=true needs" in problem for problem in found("model.compile=true"))
        return
    path = family_folder("qwen2", tmp_path)
    policies = []
    for compile in (False, True):
        torch.manual_seed(0)  # of adapters
        policy = build_policy(ModelOptions(path, packing=packing, compile=compile, **options), 1.0)
        if is_mixed:
            policy.mix_precision()
        policies.append(policy)
    assert policies[0].state_dict().keys() == policies[1].state_dict().keys()
    torch._dynamo.reset()
    atol = 3e-2 if is_mixed else 1e-5
    for number in range(7):
        batch = stale_batch(Policy(family_model("qwen2"), 1.0), num_groups=1 + number, seed=number)
        # the first batch has one static shape, the second one shows which sizes vary
        with torch._dynamo.config.patch(error_on_recompile=number > 3):
            (plain, gradient), (compiled, again) = (scored(policy, batch) for policy in policies)
            torch.testing.assert_close(compiled, plain, rtol=0, atol=atol)
            assert float(torch.cosine_similarity(joined(gradient), joined(again), dim=0)) > (
                0.99 if is_mixed else 1 - 1e-6
            )
            with torch.no_grad():
                policies[1].response_logprobs([batch.groups[0].samples[0].rollout], 1000)
