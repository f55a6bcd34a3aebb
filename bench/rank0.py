"""What rank 0 does for all ranks while their GPUs wait, in seconds by the number of tokens.

    python bench/rank0.py [--other FOLDER] [--tokens 100000 1000000] [--ranks 1 2 4] [--repeats 5]

    texts      responses become texts (`RolloutSampler.judge`, with a reward that reads nothing)
    collate    groups become the tensors of a minibatch
    shares     a minibatch is split, and every rank gets its share
    table      the columns of the token table that the default callbacks read go to rank 0
    prepare    two that an objective prepares from go to every rank

Responses have 4000 tokens each. Ranks are processes on this machine that talk by gloo. `--other` is the
folder of another checkout of this repository, measured beside this one. Wall time needs a core for each rank;
CPU time is that of rank 0, all of its threads.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Callable
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
from measuring import Spread, bench_parser, turn, write_json
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast
from updates import Size, additions, built, random_groups

from bapo_lightning.data.batches.batch import collate, split_over_ranks
from bapo_lightning.data.rollouts.sampler import RolloutSampler
from bapo_lightning.modules.token_tables import prepared_for_update
from bapo_lightning.objectives.bounds import BoundSearch
from bapo_lightning.objectives.token_table import TokenTable, reads, table_of
from bapo_lightning.runs.callbacks import build_monitors
from bapo_lightning.runs.command import number_type
from bapo_lightning.system.ranks.channel import Channel
from bapo_lightning.system.ranks.launch import free_port
from bapo_lightning.system.values import Count, CountOrZero
from bapo_lightning.types import Score, ScoreStatus

ROOT = Path(__file__).resolve().parents[1]
LENGTH, GROUP_SIZE = 4000, 8  # tokens of a response, responses of a group
AT_ONCE = 16_000  # tokens of a micro-batch
VOCAB_SIZE = 8000
CLOCKS = ("wall", "cpu")
Work = Callable[[], object]


def main() -> None:
    parser = bench_parser(__doc__, repeats=5)
    parser.add_argument("--other", type=Path, help="folder of another checkout")
    parser.add_argument("--tokens", type=number_type(Count), nargs="+", default=[100_000, 1_000_000])
    parser.add_argument("--ranks", type=number_type(Count), nargs="+", default=[1, 2, 4])
    parser.add_argument(
        "--rank",
        type=number_type(CountOrZero),
        nargs=3,
        metavar=("RANK", "RANKS", "PORT"),
        help=argparse.SUPPRESS,
    )
    arguments = parser.parse_args()
    if arguments.rank:
        serve(*arguments.rank, arguments.tokens, arguments.repeats)
        return
    checkouts = {"this": ROOT} if arguments.other is None else {"other": arguments.other, "this": ROOT}
    record = []
    print("median (least .. most) in ms; CPU of rank 0")
    print(
        f"{'ranks':>5} {'tokens':>9} {'part':9}",
        *(f"{f'{name}: {clock}':>26}" for name, clock in product(checkouts, CLOCKS)),
    )
    for ranks in arguments.ranks:
        results = {name: measured(path, ranks, arguments) for name, path in checkouts.items()}
        for rows in zip(*results.values(), strict=True):
            sides = dict(zip(results, rows, strict=True))
            record.append({"ranks": ranks, "sides": sides})
            cells = (Spread(**side[clock]).text(scale=1e3, digits=1) for side, clock in product(rows, CLOCKS))
            print(
                f"{ranks:>5} {rows[0]['tokens']:>9} {rows[0]['part']:9}",
                *(f"{cell:>26}" for cell in cells),
                flush=True,
            )
    write_json(arguments.json, {"arguments": vars(arguments), "rows": record})


def measured(checkout: Path, ranks: int, arguments: argparse.Namespace) -> list[dict[str, Any]]:
    command = [sys.executable, __file__, f"--repeats={arguments.repeats}"]
    command += ["--tokens", *map(str, arguments.tokens)]
    variables = {"PYTHONPATH": str(checkout.resolve() / "src"), "OMP_NUM_THREADS": "1", "TQDM_DISABLE": "1"}
    port = str(free_port())
    started = [
        subprocess.Popen(
            [*command, "--rank", str(rank), str(ranks), port],
            env=os.environ | variables,
            stdout=subprocess.PIPE if rank == 0 else subprocess.DEVNULL,
            text=True,
        )
        for rank in range(ranks)
    ]
    output, _ = started[0].communicate()
    codes = [process.wait() for process in started]
    if any(codes):
        sys.exit(f"a rank of {checkout} failed")
    return [json.loads(line) for line in output.split("\n") if line.startswith("{")]


def serve(rank: int, ranks: int, port: int, tokens: list[int], repeats: int) -> None:
    if ranks > 1:
        dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=ranks)
    channel = Channel(rank, ranks) if ranks > 1 else None
    for count in tokens:
        for part, work in works(rank, ranks, count, channel).items():
            turns = []
            for _ in range(repeats + 1):
                if ranks > 1:
                    dist.barrier()
                turns.append(turn(work))
            if rank == 0:
                spreads = {
                    name: vars(Spread.of([getattr(each, name) for each in turns[1:]])) for name in CLOCKS
                }
                print(json.dumps({"tokens": count, "part": part, **spreads}), flush=True)
    if ranks > 1:
        dist.destroy_process_group()


def works(rank: int, ranks: int, tokens: int, channel: Channel | None) -> dict[str, Work]:
    """Returns the parts; a rank does nothing in those that are rank 0's alone."""
    config = additions("bapo")
    module: Any = built(config)
    module._trainer = SimpleNamespace(global_step=0, callbacks=build_monitors(config, []))
    tables = tables_of(rank, tokens // ranks)
    bounds = BoundSearch(torch.tensor(0.8), torch.tensor(1.2), torch.tensor(0.4), torch.tensor(True))
    together: dict[str, Work] = {
        "table": lambda: module.gathered(tables),
        "prepare": lambda: prepared_for_update(SampleSize(), tables, bounds, len(tables)),
    }
    if rank:
        assert channel is not None
        idle = {"texts": lambda: None, "collate": lambda: None, "shares": lambda: channel.serve({})}
        return idle | together
    groups = random_groups(Size(max(tokens // LENGTH // GROUP_SIZE, 1), GROUP_SIZE, 100, LENGTH), VOCAB_SIZE)
    rollouts = [sample.rollout for group in groups for sample in group.samples]
    problems = [group.problem for group in groups for _ in group.samples]
    sampler: Any = RolloutSampler(None, tokenizer(), None, unread, None, LENGTH, 0)  # type: ignore[arg-type]
    batch = collate(groups, {})

    def shared() -> None:
        shares = split_over_ranks(batch, ranks)
        if channel is not None:
            channel.release(shares)

    return {
        "texts": lambda: sampler.judge(problems, rollouts),
        "collate": lambda: collate(groups, {}),
        "shares": shared,
        **together,
    }


def unread(problems: Any, completions: Any) -> list[Score]:
    return [Score(0.0, ScoreStatus.WRONG)] * len(completions)


def tokenizer() -> PreTrainedTokenizerFast:
    """A byte-level tokenizer like those of Qwen and Llama, trained on the documents of this repository."""
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer, bpe.decoder = pre_tokenizers.ByteLevel(), decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE, special_tokens=["<end>"], initial_alphabet=alphabet, show_progress=False
    )
    bpe.train([str(path) for path in sorted((ROOT / "docs").rglob("*.md"))], trainer)
    return PreTrainedTokenizerFast(tokenizer_object=bpe, eos_token="<end>")


class SampleSize:
    """An objective that prepares from two columns, as P3O does."""

    @reads("ratio", "count")
    def prepare(self, table: TokenTable) -> dict[str, torch.Tensor]:
        weight = table.ratio * table.count
        return {"sample_size": weight.sum().square() / (weight * table.ratio).sum() / table.count.sum()}

    def __call__(self, table: TokenTable) -> torch.Tensor:
        return table.ratio.minimum(table["sample_size"]) * table.advantage


def tables_of(rank: int, tokens: int) -> list[TokenTable]:
    generator = torch.Generator().manual_seed(rank)
    tables = []
    for start in range(0, tokens, AT_ONCE):
        count = min(AT_ONCE, tokens - start)
        number, row = torch.rand(count, generator=generator), torch.arange(start, start + count)
        columns = dict.fromkeys(("entropy", "advantage", "weight", "count"), number)
        whole = dict.fromkeys(("age", "sequence", "group", "position", "origin", "step"), row)
        tables.append(table_of(-number, -number.square(), **columns, **whole | {"origin": 0 * row}))
    return tables


if __name__ == "__main__":
    main()
