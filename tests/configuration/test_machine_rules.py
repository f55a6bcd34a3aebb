"""What this machine must have, missing on purpose."""

import os

import pytest
from tests.configuration.compositions import found, validated
from tests.configuration.test_machine import gpus, refusal

from bapo_lightning.configuration import machine_rules
from bapo_lightning.configuration.machine import check_machine
from bapo_lightning.rollout.vllm import local
from bapo_lightning.system.errors import ConfigError

__all__ = ["gpus"]  # a fixture
COMPILER = "a C compiler (gcc or clang, or the one that CC names)"


@pytest.fixture
def no_c(monkeypatch):
    """Function that gives this machine a GPU, or none, and takes its C compiler away."""

    def take(has_gpu=True):
        monkeypatch.setattr("torch.cuda.is_available", lambda: has_gpu)
        monkeypatch.setattr("torch.cuda.device_count", lambda: int(has_gpu))
        monkeypatch.setattr("torch.cuda.is_bf16_supported", lambda **_: True)
        for module in (local, machine_rules):
            monkeypatch.setattr(module, "missing_to_build", {"C": COMPILER}.get)

    return take


def test_a_folder_that_cannot_be_written_to_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "access", lambda path, mode: path != tmp_path)
    (problem,) = found(f"run_folder={tmp_path}/run")
    assert problem.endswith(f"{tmp_path} is not writable; write another output_root")


@pytest.mark.parametrize("rollout", ["vllm", "vllm_child", "vllm_server"])
def test_vllm_on_a_gpu_is_not_started_without_the_compiler_that_triton_calls(rollout, no_c, monkeypatch):
    no_c()
    monkeypatch.setattr(local, "find_spec", lambda name: name)
    assert (
        f"rollout.engine is vLLM, which on a GPU needs {COMPILER} for Triton's launcher, and it is missing "
        "here; install it, or write rollout=hf"
    ) in found(f"rollout={rollout}")
    with pytest.raises(ConfigError, match="C compiler"):  # evaluation, make serve, the nodes of a cluster
        local.require_vllm()
    no_c(has_gpu=False)
    assert found(f"rollout={rollout}") == []


@pytest.mark.parametrize("overrides", [
    ["rollout=hf"],
    ["rollout=hf_child"],
    ["rollout=vllm_server", "rollout.engine.urls=[http://127.0.0.1:8000]"],
])  # fmt: skip
def test_an_engine_that_is_no_vllm_or_elsewhere_needs_no_compiler(overrides, no_c):
    no_c()
    assert not any("compiler" in text for text in found(*overrides))


@pytest.mark.parametrize(("override", "instead"), [
    ("model.compile=true", "model.compile=false"),
    ("model.liger=true", "model.liger=false"),
    ("model.attention=flex_attention", "model.attention=sdpa"),
])  # fmt: skip
def test_kernels_that_are_built_in_a_run_need_the_compiler(override, instead, no_c):
    no_c()
    problem = f"{override} needs {COMPILER}, which this machine does not have; install it, or write {instead}"
    assert problem in found(override)
    no_c(has_gpu=False)
    assert problem not in found(override)


def test_torch_compile_needs_a_cpp_compiler_on_any_device(monkeypatch):
    monkeypatch.setattr(machine_rules, "missing_to_build", lambda language: f"a {language} compiler")
    assert found("model.compile=true") == [
        "model.compile=true needs a C++ compiler, which this machine does not have; install it, or write "
        "model.compile=false"
    ]


PREBUILT = "kernels-community/flash-attn2"
FLASH = {
    "flash_attention_2": (*("flash_attn", '--no-build-isolation -e ".[flash]", which takes nvcc'),
                          f"model.attention={PREBUILT}, which is built already, or model.attention=sdpa"),
    PREBUILT: ("kernels", '"kernels>=0.17,<0.18"', "model.attention=sdpa"),
    "varlen": ("varlen", '"torch>=2.13"', "model.attention=sdpa"),
}  # fmt: skip


@pytest.mark.parametrize("attention", FLASH)
def test_each_flash_attention_needs_its_package(attention, no_c, monkeypatch):
    no_c()
    package, wanted, instead = FLASH[attention]
    monkeypatch.setattr(machine_rules, "find_spec", lambda name: None if name == package else object())
    monkeypatch.setattr(machine_rules, "has_varlen", lambda: package != "varlen")
    overrides = [f"model.attention={attention}", "trainer.precision=bf16-mixed", "model.packing=padding_free"]
    (problem,) = found(*overrides)
    needs = f"model.attention={attention} needs a package that this machine does not have"
    assert problem == f"{needs}: pip install {wanted}; or write {instead}"
    monkeypatch.setattr(machine_rules, "find_spec", lambda name: object())
    monkeypatch.setattr(machine_rules, "has_varlen", lambda: True)
    assert found(*overrides) == []


PACKAGE = 'a package that this machine does not have: pip install "liger-kernel[cutedsl]>=0.8.5"'


@pytest.mark.parametrize(("lacking", "needs"), [
    ({"has_liger_head": False}, f"{PACKAGE}; or"),
    ({"is_hopper": False}, "a GPU of compute capability 9.0 (H100, H200, H20);"),
    ({}, None),
])  # fmt: skip
def test_ligers_head_needs_its_package_and_a_hopper_gpu(lacking, needs, no_c, monkeypatch):
    no_c()
    for name, is_so in ({"has_liger_head": True, "is_hopper": True} | lacking).items():
        monkeypatch.setattr(machine_rules, name, lambda *_, is_so=is_so: is_so)
    problems = [] if needs is None else [f"model.head=liger needs {needs} write model.head=own"]
    assert found("model.head=liger", "trainer.precision=bf16-mixed") == problems
    assert found("model.head=auto") == []


@pytest.mark.parametrize(("visible", "named", "complaint"), [
    (None, "[]", "vLLM's servers would take the first GPUs, as the trainer does"),
    (None, "['1','2']", "names 1 of the trainer's (trainer.devices=2 takes 0, 1)"),
    ("4,5,6", "['6','5']", "names 5 of the trainer's (trainer.devices=2 takes 4, 5)"),
    (None, "['2','2']", "names 2 twice"),
    ("4,5,6", "['6','0']", None),
    (None, "['2','3']", None),
])  # fmt: skip
def test_servers_have_gpus_of_their_own(visible, named, complaint, gpus, monkeypatch):
    gpus(80, 80, 80, 80)
    if visible:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    ranks = "trainer.devices=2", "strategy=ddp"
    servers = "rollout=vllm_server", "rollout.engine.num_servers=2", f"rollout.engine.gpus={named}"
    texts = found(*ranks, *servers)
    assert len(texts) == (complaint is not None)
    assert all(text.startswith("rollout.engine.gpus=[") and complaint in text for text in texts)
    assert found(*ranks, *servers, "rollout.engine.urls=['http://elsewhere:8000']") == []


@pytest.mark.parametrize(("options", "complaint"), [
    (["rollout.engine.make_engine.options.tensor_parallel_size=1"], None),
    ([], "=null is the GPU of its rank alone, and vLLM with tensor_parallel_size=2 needs 2; write e.g. "),
    (["rollout.engine.visible_gpus='1'"], "='1' has 1, and vLLM with tensor_parallel_size=2 needs 2"),
    (["rollout.engine.visible_gpus='1,2'"], None),
    (["rollout.engine.visible_gpus='2,3'"], "='2,3' names 3, and this machine's last GPU is 2"),
])  # fmt: skip
def test_a_child_sees_the_gpus_that_its_engine_needs(options, complaint, gpus):
    gpus(80, 80, 80)
    child = "rollout=vllm_child", "rollout.engine.make_engine.options.tensor_parallel_size=2"
    texts = found(*child, *options)
    assert len(texts) == (complaint is not None)
    assert all(text.startswith("rollout.engine.visible_gpus=") and complaint in text for text in texts)


def test_gpus_of_servers_are_counted_in_addition_to_the_trainers(gpus):
    gpus(80, 80, 80)
    servers = "rollout=vllm_server", "rollout.engine.options.tensor_parallel_size=2"
    assert check_machine(validated(*servers, "rollout.engine.gpus=['1,2']"))[0].startswith(
        "GPUs: 3 needed (trainer.devices=1, and 2 in rollout.engine.gpus), 3 found: "
    )
    (count,) = refusal(*servers, "rollout.engine.gpus=['2,3']", "plan.ignore=true").problems
    assert count.endswith("; rollout.engine.gpus names 3, the last one is 2")


def test_a_missing_package_is_named_where_there_is_a_gpu(gpus, monkeypatch):
    gpus(80)
    monkeypatch.setattr(machine_rules, "find_spec", lambda name: None)
    assert found("model.liger=true", "trainer.accelerator=gpu") == [
        "model.liger=true needs a package that this machine does not have: pip install liger-kernel, or -e "
        '".[gpu]" with vLLM; or write model.liger=false'
    ]


def test_apples_gpu_is_refused_and_never_chosen(monkeypatch):
    monkeypatch.setattr("torch.backends.mps.is_available", lambda: True)
    assert validated("trainer.accelerator=auto").accelerator == "cpu"
    (problem,) = found("trainer.accelerator=mps")
    assert "float64" in problem and problem.endswith("write trainer.accelerator=cpu")
