"""Measures answers judged per second beside plain math-verify, and agreement with labelled answers.

    python bench/verifier.py --rounds 5                        # throughput, on generated answers
    python bench/verifier.py --data FOLDER [--rounds 0]        # and the checks on FOLDER
    python bench/verifier.py --rounds 0 --corpus               # errors by kind on the tests' labelled pairs
    python bench/verifier.py --rounds 0 --corpus --table docs/results/rewards.csv    # and writes their table

FOLDER may hold `verifier_cases.jsonl` (id, gold, pred, equal, convention, note) and data sets `NAME.jsonl`
(answer).
"""

from __future__ import annotations

import json
import multiprocessing
import random
import re
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from math_verify import parse, verify
from measuring import Spread, bench_parser, in_turns, method, ratio, write_json

from bapo_lightning.extras.math import MathReward, score_answers
from bapo_lightning.report.markdown import markdown_table
from bapo_lightning.runs.command import number_type
from bapo_lightning.system.run_folder.text_file import write_csv
from bapo_lightning.system.values import CountOrZero
from bapo_lightning.types import Score, ScoreStatus

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
SETS = ("math500", "gsm8k_test", "aime2024", "aime2025", "olympiadbench", "dapo_math_17k")
FORMS = {
    "as it is": "{}",
    "boxed": r"\boxed{{{}}}",
    "in a sentence": "Adding both sides, we see that the value is 12. Therefore, the final answer is ${}$. I "
    "hope it is correct.",
    "behind Answer:": "Let x be the number.\nAnswer: {}",
}
CORPUS = Path(__file__).resolve().parents[1] / "tests/extras/math/corpus.jsonl"
HEADS = (
    *("kind", "pairs", "false positives", "by rule", "false negatives", "by rule"),
    *("math-verify: false positives", "math-verify: false negatives"),
)
PATIENCE = 30.0  # seconds for one answer


def main() -> None:
    parser = bench_parser(__doc__, integers=5000, expressions=1500)
    parser.add_argument("--rounds", type=number_type(CountOrZero), default=5, help="0: no speed is measured")
    parser.add_argument("--data", type=Path, help="folder of labelled cases and data sets")
    parser.add_argument("--corpus", action="store_true", help="count errors by kind on labelled pairs")
    parser.add_argument("--table", type=Path, help="the CSV file into which --corpus writes its table")
    options = parser.parse_args()
    if options.rounds:
        print(f"{method(options.rounds, 1, 1)}; MathReward has {NUM_WORKERS} workers")
        cases = {"integers": integers(options.integers), "expressions": expressions(options.expressions)}
        record = {name: compare(name, pairs, options.rounds) for name, pairs in cases.items()}
        write_json(options.json, {"arguments": vars(options), "answers": record})
    if options.data is not None:
        check_cases(options.data / "verifier_cases.jsonl")
        check_gold_answers(options.data)
    if options.corpus:
        rows = errors_by_kind(read(CORPUS))
        print(markdown_table(HEADS, rows))
        if options.table is not None:
            write_csv(options.table, HEADS, rows)


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
    numbers = {"answers_per_second": rates, "times_as_fast": faster, "same_verdicts": same}
    return {**numbers, "answers": len(pairs)}


def integers(count: int) -> list[Pair]:
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


def errors_by_kind(rows: list[dict[str, Any]]) -> list[list[str]]:
    """Returns the rows of a table: wrong answers that count as right, and right answers that do not."""
    golds, texts = [row["gold"] for row in rows], [row["text"] for row in rows]
    reward = MathReward(num_workers=NUM_WORKERS, timeout_seconds=PATIENCE, batch_seconds=600.0)
    ours = [score.status is ScoreStatus.CORRECT for score in reward.score_texts(golds, texts)]
    reward.close()
    theirs = [
        verify(parse(gold if "$" in gold else f"${gold}$"), parse(text))
        for gold, text in zip(golds, texts, strict=True)
    ]
    counts: dict[str, Counter[str]] = {}
    for row, is_right, is_theirs in zip(rows, ours, theirs, strict=True):
        kind = "false negatives" if row["right"] else "false positives"
        errors = ["pairs"]
        if is_right != row["right"]:
            errors += [kind, f"{kind} by rule"] if row.get("note") == "convention" else [kind]
        if is_theirs != row["right"]:
            errors.append(f"their {kind}")
        counts.setdefault(row["kind"], Counter()).update(errors)
    counts["all"] = sum(counts.values(), Counter())
    columns = [
        *("pairs", "false positives", "false positives by rule", "false negatives"),
        *("false negatives by rule", "their false positives", "their false negatives"),
    ]
    return [[kind, *(str(errors[column]) for column in columns)] for kind, errors in counts.items()]


def print_counts(
    name: str, what: str, scores: list[Score], golds: list[str], answers: list[str], expected: ScoreStatus
) -> None:
    counts = Counter(score.status.value for score in scores)
    print(f"{name}: {counts[expected.value]} of {len(scores)} {what}; {dict(counts)}")
    for score, gold, answer in zip(scores, golds, answers, strict=True):
        if score.status is not expected:
            print(f"  {score.status.value}: gold {gold!r}, answer {answer!r}")


def bare(gold: str) -> str:
    """Returns `gold` without dollars, which the form adds."""
    return re.sub(r"(?<!\\)\$", "", gold)


def read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().split("\n") if line.strip()]


if __name__ == "__main__":
    main()
