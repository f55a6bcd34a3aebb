"""Stage `vllm`: real engines after weight syncs, asleep, in groups of GPUs, children and servers."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from statistics import fmean

import torch
from transformers import AutoConfig

from bapo_lightning.configuration.compose import compose_run
from bapo_lightning.modules.policy.policy import Policy
from bapo_lightning.rollout.engine import SamplingParams
from bapo_lightning.rollout.vllm.local import VLLMLocalEngine
from bapo_lightning.rollout.vllm.options import VLLMOptions
from bapo_lightning.rollout.weight_sync import WeightSync, probe_answers
from bapo_lightning.system.errors import EngineError
from gpu.checks import Check, Finding, Machine, at_least, at_most, holds, skipped
from gpu.models import SHAPES, random_policy, with_layers
from gpu.rehearsal import in_small, rehearse

SYNCS = 5
NOISE = 0.2  # relative change of every weight between two syncs
CLEARLY = 10  # times as far as rounding: weights that are stale by one sync
LOST = "layers.1.mlp.down_proj"
HELD = 0.4  # of the free memory, by the trainer


def change(policy: Policy) -> None:
    """Makes another policy of this one, as many updates would."""
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.mul_(1 + NOISE * torch.randn_like(parameter))


def local_engine(machine: Machine) -> Iterator[Finding]:
    """vLLM in this process sleeps beside a trainer's memory, wakes, and holds the weights of each sync."""
    architecture = with_layers(SHAPES["SmolLM2-135M"], machine.size(30, 2))
    policy, earlier = (random_policy(architecture, machine.device) for _ in range(2))
    held = torch.empty(int(HELD * machine.free_bytes()), dtype=torch.uint8, device=machine.device)
    before, allowed = machine.free_bytes(), compose_run([])["plan"]["asleep_gigabytes"]
    with tempfile.TemporaryDirectory() as folder:
        AutoConfig.for_model(**architecture).save_pretrained(folder)
        options = VLLMOptions(max_model_len=256, max_num_seqs=64, gpu_memory_utilization=0.3)
        engine = VLLMLocalEngine(folder, options)
        sync = WeightSync(tolerance=10.0, num_probes=8, probe_tokens=40, sampled_tokens=8)
        requests, sampling = sync.probe(architecture["vocab_size"]), SamplingParams(1.0, stop_token_ids=())
        for version in range(1, SYNCS + 1):
            earlier.load_state_dict(policy.state_dict())
            change(policy)
            report = sync.push(policy, engine, version, architecture["vocab_size"])
            answers = {0: engine.generate(requests, sampling)}
            fresh, stale = (
                fmean(probe_answers(each, requests, answers)[0].differences) for each in (policy, earlier)
            )
            note = f"{stale:.2g} from the weights before, {report.transfer_seconds:.2f} s"
            title = f"vLLM in process, sync {version}: from trainer"
            yield at_most(title, fresh, stale / CLEARLY, "nats", note)
            yield at_least(f"{title}, modules compared", report.compared_share, 1.0)
            engine.sleep()
            if machine.on_gpu:
                kept = (before - machine.free_bytes()) / 1e9
                yield at_most(f"vLLM asleep after sync {version}: keeps", kept, allowed, "GB", "as planned")
        yield holds("vLLM in process: refuses weights of which one is missing", refuses(engine, policy))
        engine.close()
    del held


def refuses(engine: VLLMLocalEngine, policy: Policy) -> bool:
    """Whether a sync that lost one tensor fails."""
    weights = policy.named_weights
    policy.named_weights = lambda *given: (item for item in weights(*given) if LOST not in item[0])  # type: ignore[assignment, method-assign]
    try:
        engine.load_weights(policy, SYNCS + 1)
    except EngineError:
        return True
    return False


def several_ranks(machine: Machine) -> Iterator[Finding]:
    """FSDP2 and DDP over two or four GPUs against one, with NCCL."""
    script = Path(__file__).resolve().parents[1] / "ranks.py"
    size = machine.size(4 if torch.cuda.device_count() >= 4 else 2, 2)
    options = ("--set", f"trainer.accelerator={machine.size('gpu', 'cpu')}", "--cases", f"fsdp {size}")
    command = [sys.executable, str(script), *options, f"ddp {size}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    last = (done.stdout + done.stderr).strip().splitlines()[-1:]
    yield holds(f"FSDP2 and DDP over {size} ranks equal one", done.returncode == 0, " ".join(last))


def real_checkpoint(machine: Machine) -> Iterator[Finding]:
    """SmolLM2, whose probabilities are not those of random weights."""
    title, folder = "SmolLM2", Path("models/smollm2-135m-instruct")
    if folder.is_dir():
        yield from rehearse(title, "experiment=smollm2_arithmetic")
    else:
        yield skipped(title, f"{folder} does not exist: make model-smollm2")


PAIR = ("experiment=bapo_7b", "trainer.devices=2")
CHILD = ("experiment=bapo_7b_lora", "rollout.engine.options=null", "rollout=vllm_child")
SERVER = ("experiment=bapo_7b_lora", "rollout=vllm_server")
NCCL = ("rollout/engine/transport=nccl", "rollout.engine.gpus=['1']")
SHARED_MEMORY = ("rollout/engine/transport=shared_memory", "rollout.engine.gpus=[]")
CHECKS = (
    Check(local_engine, packages=("vllm",)),
    in_small("tensor parallelism", *PAIR, "rollout.engine.options.tensor_parallel_size=2", gpus=2),
    in_small("vLLM in a child", *CHILD),
    in_small("vLLM's server", *SERVER, *NCCL, gpus=2, on_cpu=SHARED_MEMORY),
    in_small("compiled layers, checkpointing, FSDP2", *PAIR, "model.compile=true", gpus=2),
    Check(real_checkpoint, packages=("vllm", "reasoning_gym"), seconds=1200.0),
    Check(several_ranks, gpus=2, on_cpu=True),
)
