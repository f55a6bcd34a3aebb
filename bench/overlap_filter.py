"""The overlap filter on real files: problems that it removes from training sets, and altered evaluation
problems that it finds.

python bench/overlap_filter.py --training TRAIN.jsonl ... --evaluation TEST.jsonl ...

Altering changes each word with the given probability: in a third of the cases each, the word is replaced by a
word of the training sets, left out, or followed by one. Files are .jsonl, .json, .csv or .parquet.
"""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path

from measuring import bench_parser

from bapo_lightning.data.problems.columns import ColumnMapping
from bapo_lightning.data.problems.overlap import FewTokens, LeakageFilter
from bapo_lightning.data.problems.table import problem_table
from bapo_lightning.runs.command import number_type
from bapo_lightning.system.values import Share
from bapo_lightning.types import Problem

RATES = (0.0, 0.02, 0.05, 0.1)
NUM_WORDS = 20_000


def main() -> None:
    parser = bench_parser(__doc__, has_json=False)
    parser.add_argument("--training", nargs="+", type=Path, required=True)
    parser.add_argument("--evaluation", nargs="+", type=Path, required=True)
    parser.add_argument("--problem", default="problem", help="column")
    parser.add_argument("--answer", default="answer", help="column")
    parser.add_argument("--ngram", type=number_type(FewTokens), default=LeakageFilter().ngram)
    parser.add_argument("--min-share", type=number_type(Share), default=LeakageFilter().min_share)
    options = parser.parse_args()
    rule = LeakageFilter(ngram=options.ngram, min_share=options.min_share)
    mapping = ColumnMapping(options.problem, options.answer)
    training = {path.stem: problem_table(path.stem, str(path), mapping) for path in options.training}
    held_out = {path.stem: problem_table(path.stem, str(path), mapping) for path in options.evaluation}
    print(
        f"n-grams of {rule.ngram} tokens, at least {rule.min_share:.0%} shared\n\nremoved of training sets:"
    )
    for name, problems in training.items():
        reasons = Counter(rule(problems, held_out).values())
        listed = ", ".join(f"{count} {reason}" for reason, count in sorted(reasons.items()))
        print(f"  {name:<24} {reasons.total():>4} of {len(problems):>6}  {listed}")
    largest = max(training.values(), key=len)
    known = {word for problem in largest for word in problem.prompt.split() if word.isalpha()}
    words = sorted(known)[:NUM_WORDS]
    print("\nfound evaluation problems in %, by share of altered words:")
    print("  " + " " * 24 + "".join(f"{rate:>8.0%}" for rate in RATES))
    shares = {rate: recall(rule, largest, held_out, rate, words) for rate in RATES}
    for name, problems in held_out.items():
        print(f"  {name:<18} {len(problems):>5}" + "".join(f"{shares[rate][name]:>8.1f}" for rate in RATES))


def recall(
    rule: LeakageFilter,
    training: list[Problem],
    held_out: dict[str, list[Problem]],
    rate: float,
    words: list[str],
) -> dict[str, float]:
    """Returns the percentage of each set's problems that is found when altered copies of all of them are put
    into a training set.
    """
    rng = random.Random(f"alter {rate}")
    copies = [
        Problem(f"copy/{problem.id}", altered(problem.prompt, rate, words, rng), "")
        for problems in held_out.values()
        for problem in problems
    ]
    removed = rule([*training, *copies], held_out)
    return {
        name: 100 * sum(f"copy/{problem.id}" in removed for problem in problems) / len(problems)
        for name, problems in held_out.items()
    }


def altered(text: str, rate: float, words: list[str], rng: random.Random) -> str:
    changed: list[str] = []
    for word in text.split(" "):
        change = rng.randrange(3) if rng.random() < rate else None
        if change != 1:
            changed.append(rng.choice(words) if change == 0 else word)
        if change == 2:
            changed.append(rng.choice(words))
    return " ".join(changed)


if __name__ == "__main__":
    main()
