"""How well the plan foretells memory: predicted against measured peak of updates of three small models.

    python bench/plan.py [--device cuda] [--models MODEL ...]

Each model is random, of another family and size, and makes two updates of BAPO in several micro-batches of
samples that are as long as the plan assumes. On a CPU the allocator's events (torch's profiler) from before
the model is made are added up, on a GPU the caching allocator's own maximum is read. Exits with 1 where one
prediction is off by more than 10 %.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from itertools import product
from typing import Any

import torch
from gpu.models import Architecture, random_policy, ready_module, run_shape
from measuring import bench_parser
from torch.profiler import ProfilerActivity, profile
from updates import Size, random_batch

from bapo_lightning.plan.memory import moments
from bapo_lightning.system.values import FULL, MIXED

TOLERANCE = 0.10
SIZE = Size(groups=3, group_size=4, prompt_tokens=32, response_tokens=224)
SAMPLES_AT_ONCE = 4
MICRO_BATCHES = SIZE.groups * SIZE.group_size // SAMPLES_AT_ONCE
NAMES = {False: "no", "selective": "selective", True: "yes"}
MODELS: dict[str, Architecture] = {
    "llama, 3M, tied": {
        **{"model_type": "llama", "vocab_size": 8000, "tie_word_embeddings": True},
        **{"hidden_size": 192, "intermediate_size": 512, "num_hidden_layers": 4},
        **{"num_attention_heads": 6, "num_key_value_heads": 2},
    },
    "qwen2, 9M, untied": {
        **{"model_type": "qwen2", "vocab_size": 12000, "tie_word_embeddings": False},
        **{"hidden_size": 256, "intermediate_size": 704, "num_hidden_layers": 6},
        **{"num_attention_heads": 4, "num_key_value_heads": 4},
    },
    "llama, 96M, tied": {
        **{"model_type": "llama", "vocab_size": 32000, "tie_word_embeddings": True},
        **{"hidden_size": 768, "intermediate_size": 2048, "num_hidden_layers": 11},
        **{"num_attention_heads": 12, "num_key_value_heads": 4},
    },
}


def peak_on_cpu(update: Callable[[], Any]) -> int:
    """Returns the peak of allocated bytes from the allocator's events. `update` must allocate all that it
    frees.
    """
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        update()
    events = [event for event in profiler.profiler.kineto_results.events() if event.name() == "[memory]"]
    allocated = peak = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        allocated += event.nbytes()
        peak = max(peak, allocated)
    return peak


def updates(architecture: Architecture, device: str, size: Size = SIZE, **options: Any) -> None:
    """Makes two updates of a new model on one minibatch, `SAMPLES_AT_ONCE` at once."""
    policy = random_policy(architecture, device, **options)
    module = ready_module(policy, SAMPLES_AT_ONCE * (size.prompt_tokens + size.response_tokens))
    batch = random_batch(size, architecture["vocab_size"]).to(device)
    for _ in range(2):
        module.training_step(batch, 0)


def peak_on_gpu(update: Callable[[], Any]) -> int:
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    update()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated()


def main() -> int:
    parser = bench_parser(__doc__, has_json=False)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="default: %(default)s")
    parser.add_argument(
        "--models", nargs="+", choices=sorted(MODELS), default=list(MODELS), help="default: all"
    )
    parsed = parser.parse_args()
    torch.set_num_threads(1)
    measure = peak_on_gpu if parsed.device == "cuda" else peak_on_cpu
    print(
        f"{'model':<20}{'precision':<12}{'checkpointing':<14}{'predicted MB':>14}{'measured MB':>13}"
        f"{'ratio':>8}   fullest at"
    )
    worst = 0.0
    for name, is_mixed, checkpointing in product(parsed.models, (False, True), (False, "selective", True)):
        on_gpu = parsed.device == "cuda"
        computed = {"compute_bytes": 2, "autocast": True} if is_mixed else {}
        run = run_shape(MODELS[name], SIZE, checkpointing=checkpointing, on_gpu=on_gpu, **computed)
        fullest = max(moments(run, MICRO_BATCHES), key=lambda moment: moment.bytes)
        options = {"is_mixed": is_mixed, "activation_checkpointing": checkpointing}
        measured = measure(partial(updates, MODELS[name], parsed.device, **options))
        ratio = fullest.bytes / measured
        worst = max(worst, abs(ratio - 1))
        shown = f"{MIXED if is_mixed else FULL:<12}{NAMES[checkpointing]:<14}"
        shown += f"{fullest.bytes / 1e6:>14.1f}{measured / 1e6:>13.1f}{ratio:>8.3f}"
        print(f"{name:<20}{shown}   {fullest.name}", flush=True)
    print(f"largest error {worst:.1%}, allowed {TOLERANCE:.0%}")
    return int(worst > TOLERANCE)


if __name__ == "__main__":
    sys.exit(main())
