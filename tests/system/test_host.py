"""What a machine with a GPU is told that torch cannot use, and which compilers a run will miss."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from bapo_lightning.system import host
from bapo_lightning.system.host import BUILD_FOR_CUDA_12, driver_version, missing_to_build, unused_gpu

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"


@pytest.fixture
def gpu(monkeypatch):
    """Function that gives this machine a GPU, the driver, and a torch that cannot use them."""

    def give(driver, cuda="13.0"):
        monkeypatch.setattr(host, "driver_version", lambda: driver)
        monkeypatch.setattr(torch.version, "cuda", cuda)
        monkeypatch.setattr(torch, "__version__", "2.13.0" if cuda else "2.13.0+cpu")

    monkeypatch.setattr(host, "has_nvidia_gpu", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return give


OLD = "torch 2.13.0 (CUDA {}) needs NVIDIA's driver {} or newer, and this one is {}; update it"


@pytest.mark.parametrize(("driver", "cuda", "told"), [
    ("535.129.03", "13.0", OLD.format("13.0", 580, "535.129.03")
     + f", or, without vLLM, take the build for CUDA 12.6: {BUILD_FOR_CUDA_12}"),
    ("470.82.01", "13.0", OLD.format("13.0", 580, "470.82.01")),  # which runs no build
    ("470.82.01", "12.6", OLD.format("12.6", 525, "470.82.01")),
    ("580.65.06", None, "torch 2.13.0+cpu is built without CUDA; install a build with it: make clean setup"),
])  # fmt: skip
def test_a_driver_and_a_build_that_do_not_go_together_are_reported_with_a_remedy(driver, cuda, told, gpu):
    gpu(driver, cuda)
    assert unused_gpu() == told


@pytest.mark.parametrize(("driver", "visible", "told"), [
    ("580.65.06", None, "driver 580.65.06 (no such device)"),
    ("", "NoDevFiles", "driver of unknown version and CUDA_VISIBLE_DEVICES=NoDevFiles (no such device)"),
])  # fmt: skip
def test_any_other_reason_is_torchs_own(driver, visible, told, gpu, monkeypatch):
    def fail():
        raise RuntimeError("no such device\nmore of it")

    gpu(driver)
    monkeypatch.setattr(torch.cuda, "init", fail)
    if visible:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert unused_gpu() == (
        f"torch 2.13.0 (CUDA 13.0) finds no GPU under NVIDIA's {told}; see whether nvidia-smi lists it here "
        "(containers: docker run --gpus all)"
    )


def test_nothing_is_wrong_with_gpus_that_are_used_hidden_or_not_there(gpu, monkeypatch):
    gpu("535.129.03")
    for hidden in ("", "-1"):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", hidden)
        assert unused_gpu() is None
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    assert unused_gpu() is not None
    monkeypatch.setattr(host, "has_nvidia_gpu", lambda: False)
    assert unused_gpu() is None
    monkeypatch.setattr(host, "has_nvidia_gpu", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert unused_gpu() is None


@pytest.mark.parametrize(("smi", "module", "version"), [
    ("580.65.06\n580.65.06", "", "580.65.06"),
    ("", "NVIDIA UNIX x86_64 Kernel Module  535.129.03  Thu Oct 19 18:56:32 UTC 2023", "535.129.03"),
    ("", "NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  Release Build", "580.95.05"),
    ("", "", ""),
])  # fmt: skip
def test_the_driver_is_asked_or_its_module(smi, module, version, monkeypatch, tmp_path):
    monkeypatch.setattr(host, "answer", lambda *command: smi)
    (tmp_path / "version").write_text(module)
    assert driver_version(tmp_path / "version") == version
    assert driver_version(tmp_path / "absent") == (version if smi else "")


@pytest.fixture
def only(tmp_path, monkeypatch):
    """Function that leaves this machine with these programs alone; no variable names a compiler."""

    def leave(*programs):
        for name in programs:
            (tmp_path / name).touch(mode=0o755)
        monkeypatch.setenv("PATH", str(tmp_path))

    for variable in ("CC", "CXX"):
        monkeypatch.delenv(variable, raising=False)
    (tmp_path / "Python.h").touch()
    monkeypatch.setattr(host, "get_paths", lambda: {"include": tmp_path})
    return leave


def test_triton_takes_a_c_compiler_and_torch_compile_one_for_cpp(only, monkeypatch, tmp_path):
    only()
    assert missing_to_build("C") == "a C compiler (gcc or clang, or the one that CC names)"
    only("clang")
    assert missing_to_build("C") is None
    assert missing_to_build("C++").startswith("a C++ compiler (")
    only("g++", "clang++")
    assert missing_to_build("C++") is None
    monkeypatch.setenv("CC", "icx")  # Triton then looks for no other
    assert missing_to_build("C") is not None
    only("icx")
    assert missing_to_build("C") is None
    (tmp_path / "Python.h").unlink()
    assert missing_to_build("C") == missing_to_build("C++") == "Python's header files (python3-dev)"


def test_the_set_up_reads_it_without_any_package():
    code = "import make_venv; print(make_venv.has_nvidia_gpu())"
    command = [sys.executable, "-S", "-E", "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, cwd=SCRIPTS)
    assert done.stdout in ("False\n", "True\n"), done.stderr
