"""Two rewards with weights, a table with columns of its own, and a look at what was sampled:
`python examples/own_reward_and_data.py`.
"""

import csv
from pathlib import Path

from bapo_lightning import fit
from bapo_lightning.system.run_folder.record import read_rollouts


def right(completions: list[str], answer: list[str]) -> list[float]:
    """1 where the last number of the text is the answer."""
    numbers = [text.replace(":", " ").replace(";", " ").split() or [""] for text in completions]
    return [float(found[-1] == gold) for found, gold in zip(numbers, answer, strict=True)]


def brief(completions: list[str], num_tokens: list[int], **columns: list) -> list[float]:
    """1 for an empty text, 0 from 24 tokens on."""
    return [max(0.0, 1 - count / 24) for count in num_tokens]


def main() -> None:
    """Writes a table, trains on it, prints samples."""
    with Path("questions.csv").open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["question", "solution"])
        rows.writerows([f"{a}+{b}=", a + b] for a in range(10, 40) for b in range(10, 40))
    run = fit(
        "data.train.mapping.problem=question",
        "data.train.mapping.answer=solution",
        "reward.weights=[1.0,0.2]",
        "scale.max_prompt_tokens=8",
        "scale.max_new_tokens=24",
        "scale.num_rollout_batches=12",
        "optimizer.optimizer.lr=3e-4",
        "callbacks.rollout_writer.every=8",
        model="additions",
        data="questions.csv",
        reward=[right, brief],
        staleness=4,
    )
    for row in read_rollouts(run.path)[-4:]:
        print(f"{row['prompt']} -> {row['response']!r}: reward {row['reward']:.2f}, policy {row['versions']}")


if __name__ == "__main__":
    main()
