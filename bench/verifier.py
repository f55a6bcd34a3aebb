"""Measures answers judged per second beside plain math-verify, and agreement with labelled answers.

    python bench/verifier.py --rounds 5                        # throughput, on generated answers
    python bench/verifier.py --data FOLDER [--rounds 0]        # and the checks on FOLDER

FOLDER may hold `verifier_cases.jsonl` (id, gold, pred, equal, convention, note) and data sets `NAME.jsonl`
(answer).
"""

from __future__ import annotations

import argparse
import random
from pathlib import Path
from typing import Any

from math_verify import parse, verify
from measuring import Spread, add_json_option, in_turns, method, ratio, write_json
from verifier_checks import check_cases, check_gold_answers

from bapo_lightning.rewards.math import MathReward
from bapo_lightning.types import ScoreStatus

NUM_WORKERS = 2
Pair = tuple[str, str]
_TEMPLATES = (
    (r"\frac{{{a}\sqrt{{{b}}}}}{{{c}}}", r"\frac{{{a}}}{{{c}}}\sqrt{{{b}}}"),
    ("{a}x^2 + {b}x + {c}", "{c} + {b}x + {a}x^2"),
    (r"({a}, \frac{{{b}}}{{{c}}})", r"\left({a}, {b}/{c}\right)"),
    (r"[{a}, {z}) \cup ({z}, \infty)", r"({z}, \infty) \cup [{a}, {z})"),
    (r"{a}\pi + {b}", r"{b} + \pi \cdot {a}"),
    ("x = {a}y + {b}", "{b} + {a}y"),
    (r"\{{{a}, {z}\}}", "{z}, {a}"),
    (r"{a}\sqrt{{2}}", r"\sqrt{{2 \cdot {a}^2}}"),
)


def main() -> None:
    """Prints the throughput and, with --data, the agreement."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--rounds",
        type=int,
        default=5,
        help="timed rounds of each side, in turns, after one warm-up round; 0: no throughput",
    )
    parser.add_argument("--integers", type=int, default=5000, help="answers that are integers")
    parser.add_argument("--expressions", type=int, default=1500, help="answers that are expressions")
    parser.add_argument("--data", type=Path, help="folder of labelled cases and data sets")
    add_json_option(parser)
    options = parser.parse_args()
    if options.rounds:
        print(f"{method(options.rounds, 1, 1)}; MathReward has {NUM_WORKERS} workers")
        cases = {"integers": integers(options.integers), "expressions": expressions(options.expressions)}
        record = {name: compare(name, pairs, options.rounds) for name, pairs in cases.items()}
        write_json(options.json, {"arguments": vars(options), "answers": record})
    if options.data is not None:
        check_cases(options.data / "verifier_cases.jsonl")
        check_gold_answers(options.data)


def compare(name: str, pairs: list[Pair], rounds: int) -> dict[str, Any]:
    """Times both sides in turns on the same answers; prints and returns the numbers.

    Times are by the wall clock, because the workers are processes.
    """
    golds, texts = [gold for gold, _ in pairs], [text for _, text in pairs]
    # math-verify takes expressions that leave something to compute.
    reward = MathReward(unevaluated="accept", num_workers=NUM_WORKERS, timeout_seconds=60.0)
    verdicts: dict[str, list[bool]] = {}

    def ours() -> None:
        verdicts["MathReward"] = [
            score.status is ScoreStatus.CORRECT for score in reward.score_texts(golds, texts)
        ]

    def theirs() -> None:
        verdicts["math-verify"] = [verify(parse(gold), parse(text)) for gold, text in pairs]

    taken = in_turns({"MathReward": ours, "math-verify": theirs}, rounds)
    reward.close()
    rates = {side: Spread.of([len(pairs) / turn.wall for turn in turns]) for side, turns in taken.items()}
    faster = ratio(*([turn.wall for turn in taken[side]] for side in ("math-verify", "MathReward")))
    same = sum(one == other for one, other in zip(*verdicts.values(), strict=True))
    shown = ", ".join(f"{side} {rate.text('answers/s', digits=0)}" for side, rate in rates.items())
    print(
        f"{len(pairs)} {name}: {shown}; {faster.text(digits=1)} times as fast; same verdict on {same}",
        flush=True,
    )
    return {
        "answers_per_second": rates,
        "times_as_fast": faster,
        "same_verdicts": same,
        "answers": len(pairs),
    }


def integers(count: int) -> list[Pair]:
    """Returns gold integers with answers, half of them right."""
    source = random.Random(0)
    pairs = []
    for _ in range(count):
        gold = source.randint(-999, 99_999)
        answer = gold if source.random() < 0.5 else gold + source.randint(1, 50)
        pairs.append(
            (f"${gold}$", rf"Adding up gives $x + 1$ in all, so the answer is $\boxed{{{answer}}}$.")
        )
    return pairs


def expressions(count: int) -> list[Pair]:
    """Returns gold expressions in eight shapes with answers in other notation, half of them right."""
    source = random.Random(0)
    pairs = []
    for number in range(count):
        gold, answer = _TEMPLATES[number % len(_TEMPLATES)]
        values = {
            "a": source.randint(2, 30),
            "b": source.choice([3, 5, 7, 11, 13]),
            "c": source.choice([17, 19, 23]),
        }
        values["z"] = values["a"] + source.randint(1, 9)
        written = values if source.random() < 0.5 else {**values, "a": values["a"] - 1}
        pairs.append(
            (
                f"${gold.format(**values)}$",
                rf"Adding up, the answer is $\boxed{{{answer.format(**written)}}}$.",
            )
        )
    return pairs


if __name__ == "__main__":
    main()
