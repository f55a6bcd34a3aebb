"""What a policy scores is what the model's own logits say, or the model is refused."""

import pytest
from tests.modules.policy.families import FAMILIES, SIZES, family_folder, family_model
from torch import nn
from transformers import LlamaForCausalLM, NemotronConfig
from transformers.models.auto.modeling_auto import AutoModelForCausalLM

from bapo_lightning.errors import ConfigError
from bapo_lightning.modules.policy.factory import build_policy, check_scores
from bapo_lightning.modules.policy.options import ModelOptions
from bapo_lightning.modules.policy.packing import PACKED_SDPA


class HalvedHead(nn.Linear):
    """A head with a multiplier that no configuration names."""

    def forward(self, hidden):
        return super().forward(hidden) / 2


@pytest.mark.parametrize("kernel", ["sdpa", PACKED_SDPA])
@pytest.mark.parametrize("family", FAMILIES)
def test_known_families_pass_and_keep_their_kernel(family, kernel):
    model = family_model(family)
    model.set_attn_implementation(kernel)
    check_scores(model)
    assert model.config._attn_implementation == kernel


@pytest.mark.parametrize("kernel", ["sdpa", PACKED_SDPA])
def test_a_head_that_does_more_than_a_product_is_refused_whatever_its_option_is_called(kernel):
    model = family_model("qwen2")
    model.set_attn_implementation(kernel)
    model.lm_head.__class__ = HalvedHead
    with pytest.raises(ConfigError, match=r"token scores of Qwen2ForCausalLM would be .* nats off"):
        check_scores(model)


def test_a_model_whose_layers_do_not_take_the_layout_of_packing_is_refused_in_one_sentence(tmp_path):
    AutoModelForCausalLM.from_config(NemotronConfig(**SIZES)).save_pretrained(tmp_path)
    with pytest.raises(ConfigError, match=r"NemotronForCausalLM does not take .* model\.packing=none"):
        build_policy(ModelOptions(str(tmp_path), packing="padding_free"), 1.0)
    build_policy(ModelOptions(str(tmp_path)), 1.0)


def test_a_policy_is_checked_when_it_is_built(tmp_path, monkeypatch):
    def halved(model, *args, **kwargs):
        output = forward(model, *args, **kwargs)
        output.logits = output.logits / 2
        return output

    forward = LlamaForCausalLM.forward
    monkeypatch.setattr(LlamaForCausalLM, "forward", halved)
    with pytest.raises(ConfigError, match="nats off"):
        build_policy(ModelOptions(family_folder("llama", tmp_path)), 1.0)
