"""Answers judged per second, beside plain math-verify in one process; and agreement with labelled cases and with gold answers.

    python bench/verifier.py --rounds 5                        # throughput, on generated answers
    python bench/verifier.py --data FOLDER [--rounds 0]        # and the checks on FOLDER

FOLDER may hold `verifier_cases.jsonl` (id, gold, pred, equal, convention, note) and data sets `NAME.jsonl` (answer).
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
from collections.abc import Callable
from pathlib import Path

from math_verify import parse, verify
from verifier_checks import check_cases, check_gold_answers

from bapo_lightning.rewards import MathReward
from bapo_lightning.types import ScoreStatus

NUM_INTEGERS, NUM_EXPRESSIONS, NUM_WORKERS = 5000, 1500, 2
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
    """Print both parts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5, help="of each side, in turns; 0: no throughput")
    parser.add_argument("--data", type=Path, help="folder of labelled cases and data sets")
    options = parser.parse_args()
    if options.rounds:
        compare("integers", integers(), options.rounds)
        compare("expressions", expressions(), options.rounds)
    if options.data is not None:
        check_cases(options.data / "verifier_cases.jsonl")
        check_gold_answers(options.data)


def compare(name: str, pairs: list[Pair], rounds: int) -> None:
    """Time both sides in turns, on the same answers."""
    golds, texts = [gold for gold, _ in pairs], [text for _, text in pairs]
    reward = MathReward(num_workers=NUM_WORKERS, timeout_seconds=60.0)
    sides: dict[str, Callable[[], list[bool]]] = {
        "MathReward": lambda: [score.status is ScoreStatus.CORRECT for score in reward.score_texts(golds, texts)],
        "math-verify": lambda: [verify(parse(gold), parse(text)) for gold, text in pairs],
    }
    reward.score_texts([r"\sqrt{4}"], [r"\boxed{\sqrt{9} - 1}"])  # starts the workers
    rates: dict[str, list[float]] = {side: [] for side in sides}
    verdicts: dict[str, list[bool]] = {}
    for _ in range(rounds):
        for side, judge in sides.items():
            start = time.perf_counter()
            verdicts[side] = judge()
            rates[side].append(len(pairs) / (time.perf_counter() - start))
    reward.close()
    ratios = [ours / theirs for ours, theirs in zip(rates["MathReward"], rates["math-verify"], strict=True)]
    same = sum(ours == theirs for ours, theirs in zip(*verdicts.values(), strict=True))
    shown = ", ".join(f"{side} {middle(values, '.0f')} answers/s" for side, values in rates.items())
    print(f"{name}: {shown}; ratio {middle(ratios, '.1f')}; same verdict on {same} of {len(pairs)}", flush=True)


def middle(values: list[float], digits: str) -> str:
    """Median and range."""
    return f"{statistics.median(values):{digits}} [{min(values):{digits}}, {max(values):{digits}}]"


def integers() -> list[Pair]:
    """Gold integers, half of the answers right."""
    source = random.Random(0)
    pairs = []
    for _ in range(NUM_INTEGERS):
        gold = source.randint(-999, 99_999)
        answer = gold if source.random() < 0.5 else gold + source.randint(1, 50)
        pairs.append((f"${gold}$", rf"Adding up gives $x + 1$ in all, so the answer is $\boxed{{{answer}}}$."))
    return pairs


def expressions() -> list[Pair]:
    """Gold expressions in eight shapes, half of the answers right and written differently."""
    source = random.Random(0)
    pairs = []
    for number in range(NUM_EXPRESSIONS):
        gold, answer = _TEMPLATES[number % len(_TEMPLATES)]
        values = {"a": source.randint(2, 30), "b": source.choice([3, 5, 7, 11, 13]), "c": source.choice([17, 19, 23])}
        values["z"] = values["a"] + source.randint(1, 9)
        written = values if source.random() < 0.5 else {**values, "a": values["a"] - 1}
        pairs.append((f"${gold.format(**values)}$", rf"Adding up, the answer is $\boxed{{{answer.format(**written)}}}$."))
    return pairs


if __name__ == "__main__":
    main()
