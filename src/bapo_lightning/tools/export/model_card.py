"""Writes the README.md of an exported model: its origin, settings and measured values. Needs no torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from bapo_lightning.report.markdown import markdown_table
from bapo_lightning.report.metrics import EXPECTED
from bapo_lightning.system.hub import is_hub_name
from bapo_lightning.system.run_folder.config_keys import leaves, value_of
from bapo_lightning.system.run_folder.record import Row, finite

SHIPPED = "package://bapo_lightning/"
USE = """\
```python
from transformers import pipeline

write = pipeline("text-generation", model=".")  # this folder
print(write("...", max_new_tokens=64)[0]["generated_text"])
```
"""
MEASURED = {metric.logged for metric in EXPECTED}
SHARE_TARGET = "algorithm.positive_share_target"
SETTINGS = (
    "scale.prompts_per_batch",
    "scale.group_size",
    "scale.max_new_tokens",
    "rollout.temperature",
    "regime.epochs",
    "regime.minibatches",
    "optimizer.optimizer.lr",
    "optimizer.optimizer.weight_decay",
    SHARE_TARGET,
)


def model_card(
    run: Mapping[str, Any], manifest: Mapping[str, Any], rows: Sequence[Row], update: int, dtype: str
) -> str:
    """Returns the card of the policy after `update` updates, with weights in `dtype`, from the run's resolved
    configuration, its manifest ({} without one) and its metrics.
    """
    base, name = value_of(run, "model.path"), Path(value_of(run, "run_folder")).name
    title, algorithm, regime, seed, data = (
        value_of(run, key) for key in ("name", "algorithm.name", "regime.name", "seed", "data.name")
    )
    front = {
        "library_name": "transformers",
        "pipeline_tag": "text-generation",
        "tags": ["reinforcement-learning", algorithm],
    }
    if is_hub_name(base):
        front["base_model"] = base
    if base.startswith(SHIPPED):
        front["license"] = "apache-2.0"  # another model has its own license
    sets, values = ", ".join(value_of(run, "data.validation")), dict(leaves(run))
    if is_hub_name(source := str(values.get("data.train.path"))):
        front["datasets"] = [source]
    # A share to reach is a setting only if the bounds are searched for it.
    unused = () if "algorithm.bounds.target" in values else (SHARE_TARGET,)
    settings = [(key, values[key]) for key in SETTINGS if key in values and key not in unused]
    parts = [
        f"---\n{yaml.safe_dump(front, sort_keys=False)}---\n",
        f"# {title}: {algorithm}, {update} updates\n",
        f"`{base}` after {update} updates of {algorithm} (regime {regime}, seed {seed}) on {data}, "
        f"validated on {sets}. Weights in {dtype}. Trained with "
        f"bapo-lightning ({manifest.get('versions', {}).get('bapo-lightning', 'version unknown')}, "
        f"commit {manifest.get('git_commit') or 'unknown'}), run `{name}`.\n",
        "## Use\n",
        USE,
        "## Settings\n",
        markdown_table(("key", "value"), settings) + "\n",
        "## Measured\n",
        _measured(rows, update),
    ]
    if manifest.get("command"):
        parts += ["## Command\n", f"```sh\n{manifest['command']}\n```\n"]
    return "\n".join(parts)


def _measured(rows: Sequence[Row], update: int) -> str:
    newest: dict[str, tuple[int, float]] = {}
    for row in rows[:update]:
        step = int(row["step"]) + 1
        newest |= {
            key: (step, number)
            for key, value in row.items()
            if (key in MEASURED or key.startswith("val/")) and (number := finite(value)) is not None
        }
    if not newest:
        return "Nothing yet.\n"
    values = [(key, f"{value:.4g}", step) for key, (step, value) in sorted(newest.items())]
    return markdown_table(("metric", "value", "after update"), values) + "\n"
