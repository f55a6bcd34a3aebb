"""Stage `vllm`: engines of a real vLLM after weight syncs, and training over several GPUs."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import torch
from transformers import AutoConfig, AutoModelForCausalLM

from bapo_lightning.rollout.vllm.local import VLLMLocalEngine
from bapo_lightning.rollout.vllm.options import VLLMOptions
from bapo_lightning.rollout.weight_sync import WeightSync
from gpu.checks import Check, Finding, Machine, at_most, holds, measured
from gpu.models import SHAPES, random_policy, with_layers

SYNCS = 5
TOLERANCE = 0.2  # nats, of bfloat16; weights that did not arrive show as 1 to 18


def local_engine(machine: Machine) -> Iterator[Finding]:
    """vLLM in this process sleeps, wakes, and holds the weights of five syncs."""
    architecture = with_layers(SHAPES["SmolLM2-135M"], machine.size(30, 2))
    policy = random_policy(architecture, machine.device)
    with tempfile.TemporaryDirectory() as folder:
        AutoModelForCausalLM.from_config(AutoConfig.for_model(**architecture)).save_pretrained(folder)
        options = VLLMOptions(max_model_len=256, max_num_seqs=64, gpu_memory_utilization=0.3)
        engine = VLLMLocalEngine(folder, options)
        sync = WeightSync(tolerance=TOLERANCE, num_probes=8, probe_tokens=40, sampled_tokens=8)
        free = []
        for version in range(1, SYNCS + 1):
            with torch.no_grad():
                for parameter in policy.parameters():
                    parameter.mul_(1 + 0.02 * torch.randn_like(parameter))
            report = sync.push(policy, engine, version, architecture["vocab_size"])
            note = f"largest {report.max_logprob_difference:.2g}, {report.transfer_seconds:.2f} s"
            yield at_most(
                f"vLLM in process, sync {version}: from trainer",
                report.mean_logprob_difference,
                TOLERANCE,
                "nats",
                note,
            )
            engine.sleep()
            free.append(torch.cuda.mem_get_info()[0] / 1e9 if machine.on_gpu else 0.0)
        if machine.on_gpu:
            yield measured("vLLM asleep: free memory", free[-1], "GB", f"after the first sync {free[0]:.1f}")
        engine.close()


def several_ranks(machine: Machine) -> Iterator[Finding]:
    """FSDP2 over all GPUs against one, with NCCL."""
    script = Path(__file__).resolve().parents[1] / "ranks.py"
    count = torch.cuda.device_count()
    size = 4 if count >= 4 else 2
    command = [
        sys.executable,
        str(script),
        "--set",
        "trainer.accelerator=gpu",
        "--cases",
        f"fsdp {size}",
        f"ddp {size}",
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    last = (done.stdout + done.stderr).strip().splitlines()[-1:]
    yield holds(f"FSDP2 and DDP over {size} GPUs equal one", done.returncode == 0, " ".join(last))


CHECKS = (Check(local_engine, packages=("vllm",)), Check(several_ranks, gpus=2))
