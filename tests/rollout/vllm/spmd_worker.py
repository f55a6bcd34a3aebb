"""One of two trainer ranks, each with vLLM in its process: `python spmd_worker.py RANK RENDEZVOUS MODEL
TENSOR_PARALLEL_SIZE RESULT`.
"""

import json
import sys

import torch
import torch.distributed as dist
from tests.builders import VOCAB_SIZE, random_policy
from tests.rollout.contract import requests

from bapo_lightning.rollout.engine import SamplingParams
from bapo_lightning.rollout.vllm.local import VLLMLocalEngine
from bapo_lightning.rollout.vllm.options import VLLMOptions
from bapo_lightning.rollout.weight_digests import added
from bapo_lightning.rollout.weight_sync import WeightSync


class Joined(VLLMLocalEngine):
    """Adds up the digests of both ranks' parts where they make one engine."""

    def weight_digests(self, seed):
        found = [None, None]
        dist.all_gather_object(found, super().weight_digests(seed)[0])
        return {0: added(found) if self.options.tensor_parallel_size == 2 else found[dist.get_rank()]}


def main(rank: int, rendezvous: str, model: str, tensor_parallel_size: int, result: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{rendezvous}", rank=rank, world_size=2)
    small = {"max_model_len": 64, "dtype": "float32", "kv_cache_bytes": 1 << 26}
    engine = Joined(model, VLLMOptions(**small, tensor_parallel_size=tensor_parallel_size))
    differences = [
        WeightSync(tolerance=1e-3).push(random_policy(seed), engine, seed, VOCAB_SIZE).max_logprob_difference
        for seed in (0, 1, 2)
    ]
    # Ranks of one tensor-parallel group get the same requests; others their own.
    first = 0 if tensor_parallel_size == 2 else 10 * rank
    generations = engine.generate(requests(20)[first : first + 10], SamplingParams(1.0, (1,)))
    engine.close()
    total = torch.tensor([rank + 1.0])
    dist.all_reduce(total)  # the trainer's own group is still there
    dist.destroy_process_group()
    tokens = [generation.segment.token_ids.tolist() for generation in generations]
    with open(result, "w") as file:
        json.dump({"tokens": tokens, "differences": differences, "total": total.item()}, file)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], sys.argv[3], int(sys.argv[4]), sys.argv[5])
