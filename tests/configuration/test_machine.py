"""What machines that cannot run an experiment are told, in which order and time; GPUs are simulated."""

import socket
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest
import torch
from huggingface_hub import constants
from tests.commands import said
from tests.configuration.compositions import validated

from bapo_lightning.configuration import machine
from bapo_lightning.configuration.machine import check_machine
from bapo_lightning.system import host, hub
from bapo_lightning.system.errors import MachineError

GPUS = {24: "NVIDIA L4", 80: "NVIDIA H100 80GB HBM3", 141: "NVIDIA H200"}  # by gigabytes
MODEL = "deepseek-ai/DeepSeek-R1-Distill-Qwen-7B"
PLAN = "what it needs, in numbers: make plan EXP=bapo_7b"
LAPTOP = "every part of it on this machine, with a small model, in minutes: make rehearse EXP=bapo_7b"


@pytest.fixture
def gpus(monkeypatch, tmp_path):
    """Function that gives this machine GPUs of so many gigabytes; the cache of models is empty."""

    def give(*gigabytes):
        found = [SimpleNamespace(name=GPUS[size], total_memory=int(size * 1e9)) for size in gigabytes]
        monkeypatch.setattr(torch.cuda, "is_available", lambda: bool(found))
        monkeypatch.setattr(torch.cuda, "device_count", lambda: len(found))
        monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: found[index])

    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda **_: True)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return give


@pytest.fixture
def here(monkeypatch):
    """The model of every run is here."""
    monkeypatch.setattr(machine, "hub_problem", lambda path: None)


def refusal(*overrides):
    with pytest.raises(MachineError) as error:
        check_machine(validated(*overrides))
    return error.value


def model_line(cache):
    return (
        f"model: model.path={MODEL} is neither a folder here nor in the cache ({cache}), and the hub "
        f"({constants.ENDPOINT}) is not asked (HF_HUB_OFFLINE=1); write model.path=FOLDER, or fetch it "
        f"on a machine with a network: hf download {MODEL}"
    )


TOO_FEW = [
    ([24], "1 found: NVIDIA L4, 24.0 GB", "71.8", "178.4", 1, "22.8 of 24.0"),
    ([141], "1 found: NVIDIA H200, 141.0 GB", "118.1", "222.5", 1, "133.9 of 141.0"),
    ([80] * 4, "4 found: NVIDIA H100 80GB HBM3, 80.0 GB", "75.4", "90.6", 4, "76.0 of 80.0"),
]


@pytest.mark.parametrize(("found", "counted", "planned", "fewer", "here", "usable"), TOO_FEW)
def test_too_few_gpus_memory_and_model_are_reported_in_this_order(
    found, counted, planned, fewer, here, usable, gpus, tmp_path
):
    gpus(*found)
    memory = f"{planned} GB planned for each of 8 GPUs, {fewer} GB for each of {here}; a GPU here has"
    lines = str(refusal("experiment=bapo_7b")).splitlines()
    assert lines == [
        "bapo_7b cannot run on this machine:",
        f"  1. GPUs: 8 needed (trainer.devices=8), {counted}",
        f"  2. memory: {memory} {usable} GB to use",
        f"  3. {model_line(tmp_path / 'hub')}",
        f"  {PLAN}",
        f"  {LAPTOP}",
    ]


def test_a_run_that_fits_fewer_gpus_than_it_asks_for_is_offered_on_those(gpus, here):
    gpus(*[141] * 4)
    error = refusal("experiment=bapo_7b")
    assert error.problems == (
        "GPUs: 8 needed (trainer.devices=8), 4 found: NVIDIA H200, 141.0 GB",
        "memory: 118.1 GB planned for each of 8 GPUs, 133.3 GB for each of 4; a GPU here has 133.9 of "
        "141.0 GB to use",
    )
    fits = "the same run fits the GPUs found: make train EXP=bapo_7b ARGS=trainer.devices=4"
    assert error.advice == (PLAN, fits)


def test_gpus_without_the_memory_are_reported_with_what_takes_it_and_how_to_begin_anyway(gpus, tmp_path):
    gpus(*[24] * 8)
    error = refusal("experiment=bapo_7b")
    assert [text.partition(",")[0] for text in error.problems] == [
        "GPUs: 8 needed (trainer.devices=8)",
        "memory: an update needs 71.8 GB",
        "memory: generation next to the training state needs 38.6 GB",
        "memory: the engine's cache holds 0 tokens",
        model_line(tmp_path / "hub").partition(",")[0],
    ]
    assert all("; write " in text for text in error.problems[1:])
    assert error.advice == (
        PLAN,
        "to start although it does not fit: make train EXP=bapo_7b ARGS=plan.ignore=true",
        LAPTOP,
    )


def test_where_only_the_model_is_lacking_the_rest_is_reported_to_fit(gpus, tmp_path):
    gpus(*[80] * 8)
    error = refusal("experiment=bapo_7b")
    assert error.problems == (
        "GPUs: 8 needed (trainer.devices=8), 8 found: NVIDIA H100 80GB HBM3, 80.0 GB",
        "memory: 75.4 GB planned for each GPU, which has 76.0 of 80.0 GB to use: it fits",
        model_line(tmp_path / "hub"),
    )
    assert error.advice == (PLAN, LAPTOP)


@pytest.mark.parametrize(
    ("size", "planned", "usable"), [(80, 67.5, "76.0 of 80.0"), (141, 88.4, "133.9 of 141.0")]
)
def test_one_gpu_fits_7b_with_lora_and_the_run_says_so(size, planned, usable, gpus, here):
    gpus(size)
    assert check_machine(validated("experiment=bapo_7b_lora")) == [
        f"GPUs: 1 needed (trainer.devices=1), 1 found: {GPUS[size]}, {size}.0 GB",
        f"memory: {planned} GB planned for each GPU, which has {usable} GB to use: it fits",
    ]


def test_the_smallest_of_the_gpus_that_are_taken_decides(gpus, here, monkeypatch):
    gpus(141, 24, 80)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,2,5")
    count, memory = refusal("experiment=bapo_7b").problems
    kinds = "1 x NVIDIA H200, 141.0 GB; 1 x NVIDIA L4, 24.0 GB; 1 x NVIDIA H100 80GB HBM3, 80.0 GB"
    assert count.endswith(f"3 found (CUDA_VISIBLE_DEVICES=0,2,5): {kinds}")
    assert memory.endswith("a GPU here has 22.8 of 24.0 GB to use")
    assert "133.9 of 141.0" in check_machine(validated("experiment=bapo_7b_lora"))[1]


def test_gpus_that_are_asked_for_by_name_and_not_there(gpus):
    gpus()
    (count, memory) = refusal("trainer.accelerator=gpu").problems
    assert count == (
        "GPUs: 1 needed (trainer.devices=1), none found; check CUDA_VISIBLE_DEVICES, or write "
        "trainer.accelerator=cpu"
    )
    assert memory.endswith(" GB planned for each GPU")
    assert check_machine(validated()) == []


def test_too_many_ranks_of_a_small_run_are_offered_on_the_gpus_found(gpus):
    gpus(80, 80)
    error = refusal("trainer.devices=4", "strategy=ddp")
    assert error.problems[0].startswith("GPUs: 4 needed (trainer.devices=4), 2 found: ")
    assert error.advice[-1].endswith("make train EXP=additions ARGS=trainer.devices=2")


def test_the_plan_can_be_ignored_but_neither_the_count_nor_the_model(gpus, tmp_path):
    gpus(*[24] * 8)
    count, model = refusal("experiment=bapo_7b", "plan.ignore=true").problems
    assert count.endswith("8 found: NVIDIA L4, 24.0 GB") and model == model_line(tmp_path / "hub")


def test_a_model_of_unknown_sizes_is_reported_once(gpus):
    gpus(80)
    error = refusal("model.path=nobody/nothing")
    assert error.problems[1] == "memory: not planned: the model's sizes are not known (model.architecture)"
    assert str(error).count("model.path=nobody/nothing") == 1


def test_a_run_that_is_no_preset_is_sent_to_its_own_plan(gpus):
    gpus()
    error = refusal("model.path=nobody/nothing", "name=mine")
    assert error.advice == ("what it needs, in numbers: make plan, with the EXP and ARGS of this run",)


def test_a_hub_that_never_answers_is_not_waited_for(gpus, monkeypatch):
    gpus(*[80] * 8)
    monkeypatch.setattr(hub, "HUB_SECONDS", 0.2)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setenv("HF_HUB_OFFLINE", "0")
    hub.stay_offline_without_hub.cache_clear()
    with socket.create_server(("127.0.0.1", 0)) as silent:
        monkeypatch.setattr(constants, "ENDPOINT", f"http://127.0.0.1:{silent.getsockname()[1]}")
        config, start = validated("experiment=bapo_7b"), time.monotonic()
        with pytest.raises(MachineError, match=r"the hub \(http://127.0.0.1:\d+\) cannot be reached; write "):
            check_machine(config)
    assert time.monotonic() - start < 5
    hub.stay_offline_without_hub.cache_clear()


DRIVER = "535.129.03"


@pytest.fixture
def unused(monkeypatch, here):
    """This machine has a GPU, and a driver that is too old for its torch."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(host, "has_nvidia_gpu", lambda: True)
    monkeypatch.setattr(host, "driver_version", lambda: DRIVER)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


@pytest.mark.parametrize("accelerator", ["auto", "gpu", "cuda"])
@pytest.mark.parametrize("experiment", ["bapo_7b_lora", "quickstart"])
def test_a_run_is_refused_with_the_reason_and_the_way_to_the_cpu(accelerator, experiment, unused):
    config = validated(f"experiment={experiment}", f"trainer.accelerator={accelerator}", "plan.ignore=true")
    with pytest.raises(MachineError) as refused:
        check_machine(config)
    (problem,) = refused.value.problems
    assert problem.startswith("GPUs: 1 needed (trainer.devices=1), none that can be used: torch ")
    assert f"needs NVIDIA's driver 580 or newer, and this one is {DRIVER}; update it" in problem
    assert problem.endswith("; or write trainer.accelerator=cpu")


def test_who_asks_for_the_cpu_or_hides_the_gpus_gets_it(unused, monkeypatch):
    assert check_machine(validated("trainer.accelerator=cpu")) == []
    for hidden in ("", "-1"):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", hidden)
        assert check_machine(validated()) == []


SIMULATED = """
import runpy, sys, types, torch
count, gigabytes, module = int(sys.argv[1]), float(sys.argv[2]), sys.argv[3]
gpu = types.SimpleNamespace(name="toy", total_memory=int(gigabytes * 1e9))
torch.cuda.is_available, torch.cuda.device_count = (lambda: True), (lambda: count)
torch.cuda.get_device_properties = lambda index: gpu
torch.cuda.is_bf16_supported = lambda **_: True
sys.argv = sys.argv[3:]
runpy.run_module(module, run_name="__main__")
"""


def command(module, *arguments, gpus=(1, 80), cwd):
    """A command of the package on a machine with so many GPUs of so many gigabytes."""
    call = [sys.executable, "-c", SIMULATED, *map(str, gpus), f"bapo_lightning.cli.{module}", *arguments]
    return subprocess.run(call, capture_output=True, text=True, cwd=cwd, timeout=100)  # 8 s where it is idle


@pytest.mark.slow
@pytest.mark.parametrize(("module", "arguments"), [
    ("train", ["experiment=bapo_7b", "algorithm=grpo,dapo", "-m"]),
    ("sweep", ["sweep=staleness", "experiment=bapo_7b", "seed=0,1"]),
])  # fmt: skip
def test_commands_refuse_once_and_before_anything_begins(module, arguments, tmp_path):
    done = command(module, *arguments, cwd=tmp_path)
    assert done.returncode in (1, 2)
    first, *lines = said(done.stderr)
    assert first == "error: bapo_7b cannot run on this machine:"
    told = ["1. GPUs", "2. memory", "3. model", *(text.partition(":")[0] for text in (PLAN, LAPTOP))]
    assert [line.partition(":")[0].strip() for line in lines] == told
    assert "error" not in done.stdout and list(tmp_path.iterdir()) == []


@pytest.mark.slow
@pytest.mark.parametrize("arguments", [[], ["algorithm=grpo,dapo", "-m"]])
def test_ranks_other_than_the_first_end_without_a_word(arguments, tmp_path, monkeypatch):
    for name in ("RANK", "LOCAL_RANK"):
        monkeypatch.setenv(name, "3")
    monkeypatch.setenv("WORLD_SIZE", "8")
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "x")
    done = command("train", "experiment=bapo_7b", *arguments, cwd=tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (1, "", "")


@pytest.mark.slow
def test_a_job_that_cannot_run_is_found_before_the_first_begins(tmp_path):
    done = command("train", "debug=fast", "trainer.devices=1,2", "strategy=ddp", "-m", cwd=tmp_path)
    assert done.returncode == 2 and "2 needed (trainer.devices=2), 1 found" in done.stderr
    assert list(tmp_path.iterdir()) == []
