"""Train a tiny model on a table of your own, with a reward of your own: `python examples/minimal.py`."""

import json
from pathlib import Path

from bapo_lightning import fit


def ends_with_answer(completions: list[str], answer: list[str], **columns: list) -> list[float]:
    """1 where the text ends with the right number."""
    return [float(text.strip().endswith(right)) for text, right in zip(completions, answer, strict=True)]


if __name__ == "__main__":
    sums = [{"problem": f"{a}+{b}=", "answer": str(a + b)} for a in range(30) for b in range(30)]
    Path("sums.jsonl").write_text("\n".join(map(json.dumps, sums)))
    run = fit(
        *(
            "scale.num_rollout_batches=16",
            "scale.max_prompt_tokens=8",
            "scale.max_new_tokens=24",
            "optimizer.optimizer.lr=3e-4",
        ),
        model="additions",  # or a folder, or a name on the hub
        data="sums.jsonl",
        reward=ends_with_answer,
        algorithm="bapo",
        staleness=8,
    )
    print(f"{run.path}: reward {run.rows[0]['train/reward']:.2f} -> {run.rows[-1]['train/reward']:.2f}")
