"""vLLM against the transformers engine, and weight syncs into vLLM, on SmolLM2-135M-Instruct and this
machine's CPU.

    python bench/rollout_engines.py [--requests 64] [--new-tokens 48] [--rounds 3]

Both engines sample the same prompts in float32, in one process, with the same number of threads, in turns.
Lengths: `equal` never stops, `ragged` stops at the end token.

Syncs: five pushes of weights that change by 2 % each time, within the process in float32 and bfloat16, and to
a server through shared memory; the prefix cache is on. Extra memory: the largest resident size of a process
during the push above its size before.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import threading
import time
from array import array
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import torch
from measuring import bench_parser
from transformers import AutoTokenizer

from bapo_lightning.data.problems.prompts import ChatPrompt
from bapo_lightning.data.problems.reasoning_gym import reasoning_gym_problems
from bapo_lightning.modules.policy.factory import build_policy
from bapo_lightning.modules.policy.options import ModelOptions
from bapo_lightning.modules.policy.policy import Policy
from bapo_lightning.rollout.engine import GenerationRequest, RolloutEngine, SamplingParams
from bapo_lightning.rollout.hf.engine import HFEngine
from bapo_lightning.rollout.vllm.local import VLLMLocalEngine
from bapo_lightning.rollout.vllm.options import VLLMOptions
from bapo_lightning.rollout.vllm.server import VLLMServerEngine
from bapo_lightning.rollout.weight_sync import SyncReport, WeightSync
from bapo_lightning.rollout.weight_transport import SharedMemoryTransport

MODEL = "models/smollm2-135m-instruct"
SUMS = {"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 1}
MIB = 1 << 20


def options(dtype: str) -> VLLMOptions:
    return VLLMOptions(max_model_len=144, dtype=dtype, kv_cache_bytes=512 * MIB)


def prompts(count: int) -> list[array[int]]:
    tokenizer: Any = AutoTokenizer.from_pretrained(MODEL)
    problems = reasoning_gym_problems("chain_sum", 500, 0, SUMS, "train", 0.25)
    prompt = ChatPrompt(None, "{problem}")
    return [prompt(tokenizer, problems[number // 8]) for number in range(count)]


def throughput(
    engines: dict[str, RolloutEngine], requests: list[GenerationRequest], stops: tuple[int, ...], rounds: int
) -> None:
    rates: dict[str, list[float]] = {name: [] for name in engines}
    for turn in range(rounds + 1):
        for name, engine in engines.items():
            start = time.perf_counter()
            generations = engine.generate(requests, SamplingParams(1.0, stops))
            tokens = sum(len(generation.segment.token_ids) for generation in generations)
            if turn:  # the first warms up
                rates[name].append(tokens / (time.perf_counter() - start))
    reference, other = engines
    ratios = [b / a for a, b in zip(rates[reference], rates[other], strict=True)]
    shown = "  ".join(f"{name} {statistics.median(values):7.1f} tokens/s" for name, values in rates.items())
    print(
        f"  {'ragged' if stops else 'equal':8}{shown}  ratio {statistics.median(ratios):.2f} "
        f"({min(ratios):.2f} to {max(ratios):.2f})"
    )


class PeakMemory:
    """Measures, while a block runs, the peak of processes' resident memory above its level before, and of
    shared memory (Linux).
    """

    def __init__(self, pids: list[int]) -> None:
        self._pids = pids
        self.extra: list[int] = []
        self.shared = 0

    def __enter__(self) -> PeakMemory:
        for pid in self._pids:
            Path(f"/proc/{pid}/clear_refs").write_text("5")  # resets the peak
        self._before = [psutil.Process(pid).memory_info().rss for pid in self._pids]
        self._done = threading.Event()
        self._watch = threading.Thread(target=self._follow_shared)
        self._watch.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._watch.join()
        peaks = [peak_bytes(pid) for pid in self._pids]
        self.extra = [peak - before for peak, before in zip(peaks, self._before, strict=True)]

    def _follow_shared(self) -> None:
        while not self._done.wait(0.005):
            sizes = [file.stat().st_size for file in Path("/dev/shm").glob("bapo-weights-*") if file.exists()]
            self.shared = max([self.shared, *sizes])


def peak_bytes(pid: int) -> int:
    """Returns the largest resident size of a process since its peak was reset."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmHWM")).split()[1]) << 10


def syncs(
    title: str, engine: RolloutEngine, policy: Policy, tolerance: float, processes: Callable[[], list[int]]
) -> None:
    sync = WeightSync(tolerance=tolerance, probe_tokens=40, num_probes=8, sampled_tokens=8)
    vocab_size = policy.model.config.vocab_size
    sync.push(policy, engine, 0, vocab_size)
    reports: list[SyncReport] = []
    memory: list[PeakMemory] = []
    for version in range(1, 6):
        with torch.no_grad():
            for parameter in policy.parameters():
                parameter.mul_(1 + 0.02 * torch.randn(parameter.shape[-1:]))
        with PeakMemory(processes()) as peak:
            reports.append(sync.push(policy, engine, version, vocab_size))
        memory.append(peak)
    extra = max(max(peak.extra) for peak in memory) / MIB
    print(
        f"  {title:26} transfer {statistics.median(report.transfer_seconds for report in reports):5.2f} s  "
        f"probe {statistics.median(report.probe_seconds for report in reports):5.2f} s  |log-prob "
        f"difference| mean {max(report.mean_logprob_difference for report in reports):.1e} max "
        f"{max(report.max_logprob_difference for report in reports):.1e}  extra memory {extra:4.0f} MiB a "
        f"process, {max(peak.shared for peak in memory) / MIB:4.0f} MiB shared"
    )


def main() -> None:
    arguments = bench_parser(__doc__, has_json=False, requests=64, new_tokens=48, rounds=3).parse_args()
    torch.manual_seed(0)
    policy = build_policy(ModelOptions(MODEL), temperature=1.0)
    requests = [
        GenerationRequest(ids, arguments.new_tokens, seed)
        for seed, ids in enumerate(prompts(arguments.requests))
    ]
    print(
        f"{arguments.requests} requests of up to {arguments.new_tokens} tokens, float32, "
        f"{torch.get_num_threads()} threads"
    )
    transformers, vllm = HFEngine(MODEL, device="cpu"), VLLMLocalEngine(MODEL, options("float32"))
    for engine in (transformers, vllm):
        engine.load_weights(policy, 0)
    for stops in ((), (2,)):
        throughput({"transformers": transformers, "vLLM": vllm}, requests, stops, arguments.rounds)
    size = sum(parameter.nbytes for parameter in policy.parameters()) / MIB
    print(
        f"five syncs of {size:.0f} MiB of float32 weights: median time, largest disagreement, largest extra "
        "memory"
    )
    syncs("in process, float32", vllm, policy, 1e-3, lambda: [os.getpid()])
    vllm.close()
    half = VLLMLocalEngine(MODEL, options("bfloat16"))
    syncs("in process, bfloat16", half, policy, 0.5, lambda: [os.getpid()])
    half.close()
    with tempfile.TemporaryDirectory() as logs:
        server = VLLMServerEngine(MODEL, options("float32"), SharedMemoryTransport(), logs)

        def all_processes() -> list[int]:
            return [os.getpid(), *(child.pid for child in psutil.Process().children(recursive=True))]

        syncs("server, float32", server, policy, 1e-3, all_processes)
        server.close()


if __name__ == "__main__":
    main()
