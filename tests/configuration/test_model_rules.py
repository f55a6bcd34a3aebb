"""Every rule about the model's keys, broken on purpose."""

import pytest
from tests.configuration.compositions import composed, found, validated

from bapo_lightning.ranks.rank_group import uses_cuda
from bapo_lightning.run_folder.config_keys import changes


@pytest.mark.parametrize(
    ("override", "complaint"),
    [
        (
            "model.dtype=float16",
            "model.dtype=float16 cannot be trained in (gradients underflow in float16); write one of "
            "float32, bfloat16",
        ),
        ("model.dtype=int8", "model.dtype=int8 cannot be trained in"),
        (
            "model.attention=fast",
            "model.attention=fast is none of its values; write one of sdpa, flash_attention_2, "
            "flex_attention, kernels-community/flash-attn2",
        ),
        ("model.packing=dense", "model.packing=dense is none of its values; write one of none, padding_free"),
        ("model.liger=maybe", "model.liger=maybe must be true or false"),
        ("model.activation_checkpointing=2", "model.activation_checkpointing=2 must be true or false"),
        (
            "+model.rank=8",
            "model.rank is not an option of model; it takes activation_checkpointing, architecture, "
            "attention",
        ),
        ("model/lora=default model.lora.rank=0", "model.lora.rank=0 must be a whole number of at least 1"),
        (
            "model/lora=default model.lora.alpha=high",
            "model.lora.alpha=high must be a whole number of at least 1",
        ),
        (
            "model/lora=default model.lora.target_modules=[]",
            "model.lora.target_modules=[] must be all-linear, or names of linear layers",
        ),
        (
            "model/lora=default model.lora.target_modules=[q_proj,lm_head]",
            "model.lora.target_modules: lm_head cannot be adapted",
        ),
        (
            "model/lora=default +model.lora.dropout=0.1",
            "model.lora.dropout is not an option of model.lora; it takes alpha, rank, target_modules",
        ),
        ("model.lora=16", "model.lora=16 must be a mapping, or null"),
        (
            "model.attention=flash_attention_2",
            "model.attention=flash_attention_2 computes in 16 bits, the update in float32",
        ),
        (
            "model.attention=kernels-community/flash-attn2",
            "model.attention=kernels-community/flash-attn2 computes in 16 bits, the update in float32",
        ),
        (
            "trainer.accelerator=cpu model.attention=kernels-community/flash-attn2",
            "needs a GPU, and this machine offers none to trainer.accelerator=cpu",
        ),
        (
            "trainer.accelerator=cpu model.attention=flash_attention_2",
            "needs a GPU, and this machine offers none to trainer.accelerator=cpu",
        ),
        (
            "trainer.accelerator=cpu model.attention=flex_attention",
            "needs a GPU, and this machine offers none to trainer.accelerator=cpu",
        ),
        (
            "trainer.accelerator=cpu model.liger=true",
            "model.liger=true needs a GPU, and this machine offers none",
        ),
    ],
)
def test_a_bad_key_of_the_model_is_named_with_its_remedy(override, complaint):
    assert any(complaint in text for text in found(*override.split()))


@pytest.mark.parametrize(
    "override",
    [
        "model/lora=default",
        "model.packing=padding_free",
        "model.attention=sdpa",
        "model.dtype=bfloat16 rollout.weight_sync.tolerance=0.2",
    ],
)
def test_what_runs_everywhere_passes(override):
    assert found(*override.split(), "model.activation_checkpointing=true") == []


def test_a_missing_package_is_named_where_there_is_a_gpu(monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 1)
    monkeypatch.setattr("torch.cuda.is_bf16_supported", lambda **_: True)
    problems = found("model.liger=true", "trainer.accelerator=gpu")
    assert problems == [
        "model.liger=true needs a package that this machine does not have: pip install liger-kernel; or "
        "write model.liger=false"
    ]


def test_accelerators_by_name(monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    assert uses_cuda("gpu") and uses_cuda("cuda") and not uses_cuda("cpu") and not uses_cuda("mps")


def test_apples_gpu_is_refused_and_never_chosen(monkeypatch):
    monkeypatch.setattr("torch.backends.mps.is_available", lambda: True)
    assert validated("trainer.accelerator=auto").accelerator == "cpu"
    (problem,) = found("trainer.accelerator=mps")
    assert "float64" in problem and problem.endswith("write trainer.accelerator=cpu")


def test_how_a_model_computes_may_change_when_a_run_goes_on_but_not_what_is_trained():
    before, after = (
        composed(),
        composed("model.packing=none", "model.activation_checkpointing=true", "model/lora=default"),
    )
    allowed, refused = changes(before, after)
    assert sorted(line.partition(":")[0] for line in allowed) == [
        "model.activation_checkpointing",
        "model.packing",
    ]
    assert refused and all(line.startswith("model.lora") for line in refused)
