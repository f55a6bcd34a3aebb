"""`make plan` from the outside, the run that refuses a plan, and `make serve` as far as it needs no vLLM."""

import re
import socket
from pathlib import Path

import pytest
import torch
from tests.commands import run_command
from tests.configuration.compositions import composed, found

from bapo_lightning.configuration.plan import architecture, plan_of
from bapo_lightning.configuration.precision import settled
from bapo_lightning.configuration.validate import validate
from bapo_lightning.system.errors import ConfigError, DataError
from bapo_lightning.tools.commands.serve import refuse_taken_ports, served

ROOT = Path(__file__).resolve().parents[2]


def typed(*overrides):
    return validate(composed(*overrides), "run")


def test_the_plan_of_the_quickstart_adds_up():
    done = run_command("bapo_lightning.tools.commands.plan")
    assert done.returncode == 0, done.stderr
    assert "quickstart: llama, 109,504 parameters, 1 x h100_80gb, strategy single" in done.stdout
    table = done.stdout.partition("generation, with the training state")[2].partition("together")
    shown = [float(number) for number in re.findall(r" (\d+\.\d\d)   ", table[0])]
    assert sum(shown) == pytest.approx(float(table[2].split()[0]), abs=0.03)
    assert done.stdout.splitlines()[-1].startswith("It fits: the fullest moment takes 2.")
    assert "GPUs at 0.16 of 989.4 TFLOP/s in updates, 0.5 in scoring;" in done.stdout
    assert "their memory at 0.6 of 3.35 TB/s in decoding; all assumed" in done.stdout


def test_what_does_not_fit_ends_with_a_code_of_its_own():
    done = run_command("bapo_lightning.tools.commands.plan", "plan.overhead_gigabytes=79")
    assert done.returncode == 3
    refusal = "It does not fit into 76.0 GB of a h100_80gb (0.95 of 80.0 GB):\n  1. an update needs 79."
    assert refusal in done.stdout


@pytest.mark.parametrize(("override", "complaint"), [
    ("plan.gpu=h900", "plan.gpu=h900 is not known; write one of a100_40gb, a100_80gb,"),
    ("plan.update_share=1.5", "plan.update_share=1.5 must be a number in (0, 1]"),
    ("plan.overhead_gigabytes=-1", "=-1 must be a number of gigabytes, at least 0"),
])  # fmt: skip
def test_a_run_refuses_a_bad_key_of_the_plan(override, complaint):
    assert [text for text in found(override) if complaint in text]


def test_sizes_that_the_configuration_gives_need_no_model():
    config = typed("model.path=nobody/nothing", "+model.architecture.model_type=llama")
    assert architecture(config.model) == {"model_type": "llama"}


def test_a_model_that_is_nowhere_is_named():
    with pytest.raises(DataError, match=r"model\.path=nobody/nothing: its config.json could not be loaded"):
        plan_of(typed("model.path=nobody/nothing"))


@pytest.mark.slow
@pytest.mark.drill
def test_the_bench_foretells_the_memory_of_a_small_model_within_a_tenth():
    done = run_command(ROOT / "bench" / "plan.py", "--models", "llama, 3M, tied", cwd=ROOT)
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(re.findall(r"^llama, 3M, tied +\S+ +(?:no|yes) ", done.stdout, re.MULTILINE)) == 4


def test_a_port_that_is_taken_is_named_before_vllm_loads():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        complaint = rf"port {port} cannot be used \(Address already in use\); write rollout"
        with pytest.raises(ConfigError, match=complaint):
            refuse_taken_ports([port])
    refuse_taken_ports([port])


@pytest.mark.parametrize(
    "given", [(), ("trainer.precision=bf16-mixed",), ("rollout.engine.options.dtype=bfloat16",)]
)
def test_a_server_has_the_precision_of_the_run_that_uses_it(given):
    plain = composed("experiment=sums", "rollout=vllm_server", *given)
    held, run = served(plain).rollout.engine.options["options"]["dtype"], settled(plain)
    assert held == run["rollout"]["engine"]["options"]["dtype"]
    assert torch.cuda.is_available() or held == ("bfloat16" if given else "float32")
