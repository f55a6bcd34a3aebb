"""Checks of bench/verifier.py on a folder of data: labelled cases, and gold answers against each other."""

from __future__ import annotations

import json
import multiprocessing
import re
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from bapo_lightning.rewards.math import MathReward, score_answers
from bapo_lightning.types import Score, ScoreStatus

SETS = ("math500", "gsm8k_test", "aime2024", "aime2025", "olympiadbench", "dapo_math_17k")
FORMS = {
    "as it is": "{}",
    "boxed": r"\boxed{{{}}}",
    "in a sentence": "Adding both sides, we see that the value is 12. Therefore, the final answer is ${}$. I "
    "hope it is correct.",
    "behind Answer:": "Let x be the number.\nAnswer: {}",
}
PATIENCE = 30.0  # seconds for one answer


def check_cases(path: Path) -> None:
    """Prints the agreement with labelled cases, each miss, and whether thread and process judge alike."""
    cases = read(path)
    golds, answers = [case["gold"] for case in cases], [case["pred"] for case in cases]
    scores = score_answers(golds, answers, PATIENCE)
    for convention in (False, True):
        rows = [
            (case, score)
            for case, score in zip(cases, scores, strict=True)
            if case["convention"] is convention
        ]
        misses = [
            (case, score) for case, score in rows if (score.status is ScoreStatus.CORRECT) != case["equal"]
        ]
        agreed = len(rows) - len(misses)
        print(
            f"cases with convention={str(convention).lower()}: {agreed} of {len(rows)} agree "
            f"({100 * agreed / max(len(rows), 1):.1f} %)"
        )
        for case, score in misses:
            print(
                f"  miss {case['id']}: labelled {'equal' if case['equal'] else 'different'}, judged "
                f"{score.status.value} (gold {case['gold'][-60:]!r}, answer {case['pred'][-60:]!r}) "
                f"{case.get('note', '')}"
            )
    with ThreadPoolExecutor(1) as thread:
        from_thread = thread.submit(score_answers, golds, answers, PATIENCE).result()
    with multiprocessing.get_context("spawn").Pool(1) as process:
        from_process = process.apply(score_answers, (golds, answers, PATIENCE))
    print(
        "same scores from the main thread, another thread and another process: "
        f"{scores == from_thread == from_process}",
        flush=True,
    )


def check_gold_answers(folder: Path) -> None:
    """Prints the verdicts on each data set's gold answers: in several forms, and for the next problem."""
    reward = MathReward(accept="any", timeout_seconds=PATIENCE)
    for name in SETS:
        start = time.perf_counter()
        golds = [row["answer"] for row in read(folder / f"{name}.jsonl")]
        for form, text in FORMS.items():
            scores = reward.score_texts(
                golds, [text.format(bare(gold) if "$" in text else gold) for gold in golds]
            )
            print_counts(name, f"right {form}", scores, golds, golds, ScoreStatus.CORRECT)
        others = [
            (gold, other) for gold, other in zip(golds, golds[1:] + golds[:1], strict=True) if gold != other
        ]
        left, right = [gold for gold, _ in others], [other for _, other in others]
        print_counts(
            name,
            "wrong for another's",
            reward.score_texts(left, [rf"\boxed{{{other}}}" for other in right]),
            left,
            right,
            ScoreStatus.WRONG,
        )
        print(f"  {time.perf_counter() - start:.0f} s", flush=True)
    reward.close()


def print_counts(
    name: str, what: str, scores: list[Score], golds: list[str], answers: list[str], expected: ScoreStatus
) -> None:
    """Prints a count of statuses, and each answer with another status than `expected`."""
    counts = Counter(score.status.value for score in scores)
    print(f"{name}: {counts[expected.value]} of {len(scores)} {what}; {dict(counts)}")
    for score, gold, answer in zip(scores, golds, answers, strict=True):
        if score.status is not expected:
            print(f"  {score.status.value}: gold {gold!r}, answer {answer!r}")


def bare(gold: str) -> str:
    """Returns `gold` without dollars, which the form adds."""
    return re.sub(r"(?<!\\)\$", "", gold)


def read(path: Path) -> list[dict[str, Any]]:
    """Returns the rows of a file with one JSON object per line."""
    return [json.loads(line) for line in path.read_text().splitlines() if line.strip()]
