"""Speed and rounding of mixed precision and of compiled layers, beside float32.

    python bench/precision.py smollm2                seconds of an update and of a rollout batch
    python bench/precision.py tiny --rounds 15
    python bench/precision.py mismatch               log-probs of engine and trainer for each pair of dtypes

An update is one minibatch of random tokens; a rollout batch is what the `hf` engine samples for as many
prompts. The first update of each way, in which compiled layers are compiled, is shown by itself. Ways take
turns; CPU seconds are those of all threads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from statistics import fmean
from typing import Any

import torch
from measuring import Spread, Turn, bench_parser, in_turns, method, ratio, turn, write_json
from updates import Size, attach, random_batch

from bapo_lightning.configuration.compose import compose_run
from bapo_lightning.configuration.run_config import RunConfig
from bapo_lightning.configuration.validate import validate
from bapo_lightning.data.batches.batch import TrainBatch
from bapo_lightning.modules.bapo_module import BapoModule
from bapo_lightning.modules.policy.folder import model_path
from bapo_lightning.modules.policy.policy import Policy
from bapo_lightning.rollout.engine import GenerationRequest, SamplingParams
from bapo_lightning.rollout.hf.engine import HFEngine
from bapo_lightning.runs.build import build_module
from bapo_lightning.system.values import FULL, MIXED
from bapo_lightning.types import Rollout

EXPERIMENTS = {"tiny": "additions", "smollm2": "smollm2_arithmetic"}
SIZES = {"tiny": Size(16, 8, 16, 24), "smollm2": Size(2, 8, 46, 32)}
# Name -> precision of the trainer, and whether layers are compiled.
WAYS = {
    "float32": (FULL, False),
    "mixed": (MIXED, False),
    "float32, compiled": (FULL, True),
    "mixed, compiled": (MIXED, True),
}
ENGINES = ("float32", "bfloat16", MIXED)
SAMPLING = SamplingParams(1.0, stop_token_ids=())


def configured(model: str, *overrides: str) -> RunConfig:
    return validate(compose_run([f"experiment={EXPERIMENTS[model]}", "run_folder=unused", *overrides]))


def module_of(model: str, way: str) -> BapoModule:
    precision, compiled = WAYS[way]
    config = configured(model, f"model.compile={str(compiled).lower()}", f"trainer.precision={precision}")
    module = build_module(config, config.strategy.make())
    module.is_mixed = precision == MIXED
    return attach(module)


def engine_of(model: str, dtype: str, policy: Policy) -> HFEngine:
    engine = HFEngine(model_path(configured(model).model.path), dtype=dtype, device="cpu")  # type: ignore[arg-type]
    engine.load_weights(policy, 0)
    return engine


def requests_of(batch: TrainBatch, size: Size) -> list[GenerationRequest]:
    samples = [sample for group in batch.groups for sample in group.samples]
    return [
        GenerationRequest(sample.rollout.prompt_ids, size.response_tokens, seed)
        for seed, sample in enumerate(samples)
    ]


def speed(model: str, rounds: int) -> dict[str, Any]:
    size = SIZES[model]
    modules = {way: module_of(model, way) for way in WAYS}
    policy = modules["float32"].policy
    batch = random_batch(size, policy.model.config.vocab_size)
    requests = requests_of(batch, size)
    updates: dict[str, Callable[[], object]] = {
        way: partial(module.training_step, batch, 0) for way, module in modules.items()
    }
    first = {way: turn(update) for way, update in updates.items()}
    samplings: dict[str, Callable[[], object]] = {
        dtype: partial(engine_of(model, dtype, policy).generate, requests, SAMPLING) for dtype in ENGINES
    }
    print(
        f"{model}: {size.groups} x {size.group_size} samples of {size.prompt_tokens} + {size.response_tokens}"
    )
    return {
        "update": shown("update", in_turns(updates, rounds), first),
        "rollout batch": shown("rollout batch, hf", in_turns(samplings, rounds), {}),
    }


def shown(title: str, taken: dict[str, list[Turn]], first: dict[str, Turn]) -> dict[str, Any]:
    record: dict[str, Any] = {}
    reference = [one.cpu for one in taken["float32"]]
    for way, turns in taken.items():
        cpu = [one.cpu for one in turns]
        faster = ratio(reference, cpu)
        begin = f"   first one {first[way].cpu:.1f} s" if way in first else ""
        against = f"   {faster.text()} times as fast as float32"
        print(
            f"  {title:18} {way:18} {Spread.of(cpu).text('CPU s', digits=3):34}{against}{begin}", flush=True
        )
        record[way] = {"cpu": Spread.of(cpu), "times_as_fast": faster, "first": first.get(way)}
    return record


def mismatches(size: Size) -> Iterator[tuple[str, str, list[float]]]:
    """Yields engine's dtype, trainer's precision, and |engine's log-prob - trainer's| in nats of each sampled
    token.
    """
    modules = {way: module_of("smollm2", way) for way in ("float32", "mixed")}
    policy = modules["float32"].policy
    requests = requests_of(random_batch(size, policy.model.config.vocab_size), size)
    for dtype in ENGINES:
        generations = engine_of("smollm2", dtype, policy).generate(requests, SAMPLING)
        rollouts = [
            Rollout(request.token_ids, (one.segment,), one.finish)
            for request, one in zip(requests, generations, strict=True)
        ]
        for way, module in modules.items():
            scored = module.policy.response_logprobs(rollouts, 4096)
            pairs = [
                zip(row.logprobs, scores, strict=True) for row, scores in zip(rollouts, scored, strict=True)
            ]
            yield dtype, way, [abs(theirs - ours) for pair in pairs for theirs, ours in pair]


def main() -> None:
    parser = bench_parser(__doc__, rounds=5, threads=1)
    parser.add_argument("part", choices=[*EXPERIMENTS, "mismatch"])
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    record: dict[str, Any] = {"arguments": vars(given)}
    if given.part != "mismatch":
        print(method(given.rounds, 1, given.threads))
        record |= speed(given.part, given.rounds)
    else:
        for dtype, way, differences in mismatches(Size(8, 8, 46, 32)):
            mean, largest = fmean(differences), max(differences)
            print(
                f"engine {dtype:12} trainer {way:10} mean {mean:.2g}, largest {largest:.2g} nats over "
                f"{len(differences)} tokens"
            )
            record[f"{dtype}, {way}"] = {"mean": mean, "largest": largest}
    write_json(given.json, record)


if __name__ == "__main__":
    main()
