"""A fleet of Ray actors against one engine in a child process, on the locks' model and this machine's cores.

    python bench/ray_fleet.py [--requests 512 2048] [--per-call 64 512] [--engines 1 2 3] [--repeats 7]

All engines sample the same requests with one thread each, in turns; ratios are of neighbouring turns. A pass
of one engine on the fleet against that of the child, which cuts it into as many rows, is what Ray costs. A
sync is the hand-over of all weights without the proof.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import torch
from measuring import Spread, bench_parser, in_turns, method, ratio, write_json

from bapo_lightning.extras.ray.engine import RayEngine
from bapo_lightning.modules.policy.factory import build_policy
from bapo_lightning.modules.policy.folder import model_path
from bapo_lightning.modules.policy.options import ModelOptions
from bapo_lightning.rollout.child.engine import ChildEngine
from bapo_lightning.rollout.engine import GenerationRequest, RolloutEngine, SamplingParams
from bapo_lightning.rollout.hf.engine import HFEngine
from bapo_lightning.runs.command import number_type
from bapo_lightning.system.values import Count

MODEL = "locks"
SAMPLING = SamplingParams(1.0, stop_token_ids=())
NEW_TOKENS = 32


def requests(count: int) -> list[GenerationRequest]:
    return [
        GenerationRequest(array("i", [3 + (row // 8 + place) % 9 for place in range(6)]), NEW_TOKENS, row)
        for row in range(count)
    ]


def main() -> None:
    parser = bench_parser(__doc__, repeats=7)
    parser.add_argument(
        "--requests", type=number_type(Count), nargs="+", default=[512, 2048], help="of a pass"
    )
    parser.add_argument(
        "--per-call", type=number_type(Count), nargs="+", default=[64, 512], help="sampled at once"
    )
    parser.add_argument(
        "--engines", type=number_type(Count), nargs="+", default=[1, 2, 3], help="of the fleets"
    )
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    path = model_path(str(Path("src/bapo_lightning/tiny_worlds", MODEL, "model")))
    policy = build_policy(ModelOptions(path=path, dtype="float32"), 1.0)
    print(method(arguments.repeats, 1, 1))
    record: dict[str, Any] = {}
    for per_call in arguments.per_call:
        with ExitStack() as stack:
            inner = partial(HFEngine, max_rows=per_call)
            engines: dict[str, RolloutEngine] = {"child": ChildEngine(path, inner, cpu_threads=1)}
            for count in arguments.engines:
                fleet = {"actors": count, "cpus": 0.25, "cpu_threads": 1, "requests_per_call": per_call}
                engines[f"fleet of {count}"] = RayEngine(path, inner, **fleet)
            for engine in engines.values():
                stack.callback(engine.close)
            record[str(per_call)] = measured(engines, policy, arguments.requests, per_call, arguments.repeats)
    write_json(arguments.json, record)


def measured(
    engines: dict[str, RolloutEngine], policy: Any, counts: list[int], per_call: int, repeats: int
) -> dict[str, Any]:
    record: dict[str, Any] = {}
    syncs: dict[str, Callable[[], object]] = {
        name: partial(engine.load_weights, policy, 1) for name, engine in engines.items()
    }
    print(f"\n{per_call} requests in a call")
    for name, turns in in_turns(syncs, repeats).items():
        record[f"sync, {name}"] = spread = Spread.of([each.wall for each in turns])
        print(f"  sync, {name}: {spread.text('ms', 1000, 1)}")
    for count in counts:
        batch = requests(count)
        passes: dict[str, Callable[[], object]] = {
            name: partial(engine.generate, batch, SAMPLING) for name, engine in engines.items()
        }
        walls = {name: [each.wall for each in turns] for name, turns in in_turns(passes, repeats).items()}
        for name, seconds in walls.items():
            speed, note = Spread.of([count * NEW_TOKENS / each for each in seconds]), ""
            if name != "child":
                extra = Spread.of([a - b for a, b in zip(seconds, walls["child"], strict=True)])
                note = f"; {ratio(walls['child'], seconds).text()} times the child's speed"
                note += f", {extra.text('ms', 1000, 1)} more for a pass" if name == "fleet of 1" else ""
            record[f"{count}, {name}"] = speed
            print(f"  {count} requests, {name}: {speed.text('tokens/s', digits=0)}{note}")
    return record


if __name__ == "__main__":
    main()
