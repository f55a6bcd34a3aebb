"""Rules between configuration keys, all checked before any weight is loaded.

Each complaint says what is set, why it cannot be, and what to write instead.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bapo_lightning.configuration.alarm_checks import alarm_complaints
from bapo_lightning.configuration.data_checks import data_complaints
from bapo_lightning.configuration.engine_checks import DTYPES, engine_complaints
from bapo_lightning.configuration.model_checks import installed_complaints, model_complaints
from bapo_lightning.configuration.plan_keys import plan_complaints
from bapo_lightning.configuration.rank_checks import rank_complaints
from bapo_lightning.configuration.regime_checks import regime_complaints
from bapo_lightning.configuration.targets import UNREADABLE, foreign_keys, options_of
from bapo_lightning.modules.policy.folder import model_folder_problems

Config = dict[str, Any]
CHOICES = {
    "kind": ("gradient", "surrogate"),
    "order": ("upper_first", "lower_first"),
    "measure": ("share", "ratio"),
    "weight": ("rollout_prob", "none"),
    "scope": ("minibatch", "microbatch"),
}

COUNTS = (
    *(
        f"scale.{name}"
        for name in (
            "prompts_per_batch",
            "group_size",
            "num_rollout_batches",
            "max_new_tokens",
            "overlong_buffer",
        )
    ),
    *(
        f"scale.{name}"
        for name in ("max_prompt_tokens", "micro_batch_tokens", "validation_problems", "validation_samples")
    ),
    *(f"regime.{name}" for name in ("epochs", "minibatches")),
    *(f"trainer.{name}" for name in ("devices", "num_nodes", "checkpoint_every", "checkpoints_kept")),
    *(
        f"callbacks.{name}"
        for name in (
            "print_every",
            "samples_every",
            "samples_num_groups",
            "measure_entropy_every",
            "validate_every",
        )
    ),
    "callbacks.tokens_every",
    "callbacks.export_every",
    "optimizer.max_nonfinite_in_a_row",
    "rollout.max_restarts",
)
MAY_BE_ZERO = (
    "rollout.max_restarts",
    *(
        f"callbacks.{name}"
        for name in ("tokens_every", "measure_entropy_every", "validate_every", "export_every")
    ),
)
NUMBERS = (
    *(f"rollout.{name}" for name in ("temperature", "top_p", "top_k", "weight_sync.tolerance")),
    "optimizer.optimizer.lr",
    "optimizer.max_grad_norm",
)


def complaints(config: Config) -> list[str]:
    """Everything that is wrong with a resolved configuration; empty when it can run."""
    found = list(number_complaints(config))
    if not found:  # rules between numbers make sense of numbers only
        found = [
            *bound_complaints(config["algorithm"]),
            *batch_complaints(config),
            *regime_complaints(config),
            *rollout_complaints(config),
            *correction_complaints(config),
            *rate_complaints(config),
            *engine_complaints(config),
            *rank_complaints(config),
        ]
    found += [
        *plan_complaints(config),
        *export_complaints(config["callbacks"]),
        *alarm_complaints(config["callbacks"]),
        *checkpoint_complaints(config["trainer"]),
    ]
    found += [*data_complaints(config["data"]), *model_complaints(config), *installed_complaints(config)]
    found += [*target_complaints(config), *output_complaints(config["run_folder"])]
    return found + list(model_folder_problems(config["model"]))


def bound_complaints(algorithm: Config) -> Iterator[str]:
    """Bounds are ratios around 1, and a search goes from start to end."""
    bounds, key = algorithm["bounds"], "algorithm.bounds"
    if "target" in bounds:
        for side in ("low", "high"):
            yield from _grid_complaints(bounds[side], f"{key}.{side}")
        for name, choices in CHOICES.items():
            if bounds[name] not in choices:
                yield f"{key}.{name}={bounds[name]} is none of its values; write one of {', '.join(choices)}"
        yield from _target_range_complaints(bounds, key)
        low, high = bounds["low"]["end"], bounds["high"]["start"]
        names = f"{key}.low.end", f"{key}.high.start"
    else:
        low, high = bounds["low"], bounds["high"]
        names = f"{key}.low", f"{key}.high"
    if not 0 <= low < 1:
        yield (
            f"{names[0]}={low} is no lower bound: it is an importance ratio (not an epsilon) and must be in "
            "[0, 1); write e.g. 0.8"
        )
    if not high > 1:
        yield (
            f"{names[1]}={high} is no upper bound: it is an importance ratio (not an epsilon) and must be "
            "above 1; write e.g. 1.2"
        )
    dual_clip = algorithm["objective"].get("dual_clip")
    if dual_clip is not None and dual_clip <= 1:
        yield (
            f"algorithm.objective.dual_clip={dual_clip} would cut unclipped tokens; write a number above 1, "
            "e.g. 3.0, or null"
        )


def batch_complaints(config: Config) -> Iterator[str]:
    """Groups, minibatches and epochs fit together."""
    scale, regime, algorithm = config["scale"], config["regime"], config["algorithm"]
    prompts, minibatches, group = scale["prompts_per_batch"], regime["minibatches"], scale["group_size"]
    if minibatches > 0 and prompts % minibatches:
        fits = [count for count in range(1, prompts + 1) if prompts % count == 0]
        nearest = min(fits, key=lambda count: abs(count - minibatches))
        yield (
            f"regime.minibatches={minibatches} does not divide scale.prompts_per_batch={prompts}: "
            f"minibatches hold whole groups of equal number; write regime.minibatches={nearest} or "
            f"scale.prompts_per_batch={(prompts // minibatches + 1) * minibatches}"
        )
    if algorithm["advantages"].get("scale") not in ("std", "none"):
        yield (
            f"algorithm.advantages.scale={algorithm['advantages'].get('scale')} is none of its values; write "
            "std or none"
        )
    if group == 1 and algorithm["advantages"].get("scale") == "std":
        yield (
            "scale.group_size=1 with algorithm.advantages.scale=std: one sample has no standard deviation; "
            "write scale.group_size=8"
        )
    elif group == 1:
        yield (
            "scale.group_size=1: advantages are relative to a group, and one sample is always average; "
            "write scale.group_size=8"
        )
    buffer = scale["overlong_buffer"]
    if buffer > scale["max_new_tokens"]:
        yield (
            f"scale.overlong_buffer={buffer} must be in 1..scale.max_new_tokens={scale['max_new_tokens']}; "
            "write a quarter of it"
        )


def rollout_complaints(config: Config) -> Iterator[str]:
    """Sampling that training can use."""
    temperature = config["rollout"]["temperature"]
    if not temperature > 0:
        yield f"rollout.temperature={temperature}: training samples must come from a distribution; write 1.0"
    for name, off in (("top_p", 1.0), ("top_k", 0)):
        if config["rollout"][name] != off:
            yield (
                f"rollout.{name}={config['rollout'][name]} is refused for training: engine and trainer would "
                "cut different tokens at the edge of the nucleus, and the importance ratio of those means "
                f"nothing; write {off} (evaluation may differ)"
            )
    tolerance = config["rollout"]["weight_sync"]["tolerance"]
    if not tolerance > 0:
        yield (
            f"rollout.weight_sync.tolerance={tolerance}: no two computations agree to the last bit; write "
            "e.g. 1e-3"
        )


def correction_complaints(config: Config) -> Iterator[str]:
    """Weights of decoupled PPO that keep a token of exact agreement."""
    weights, key = config["correction"]["weights"] or {}, "correction.weights"
    if "cap" in weights and not weights["cap"] > 0:
        yield f"{key}.cap={weights['cap']} would erase every token; write a positive number, e.g. 2.0"
    if "low" in weights and not 0 <= weights["low"] < 1:
        yield (
            f"{key}.low={weights['low']} is no lower end around weight 1: it must be in [0, 1); write e.g. "
            "0.5"
        )
    if "high" in weights and not weights["high"] > 1:
        yield (
            f"{key}.high={weights['high']} is no upper end around weight 1: it must be above 1; write e.g. "
            "5.0"
        )


def number_complaints(config: Config) -> Iterator[str]:
    """Counts are whole numbers of at least 1 (0 where it means never), and what should be a number is one."""
    for name in COUNTS:
        value, least = _value(config, name), 0 if name in MAY_BE_ZERO else 1
        if not (isinstance(value, int) and not isinstance(value, bool) and value >= least):
            yield f"{name}={value} must be a whole number of at least {least}"
    bounds = {
        key: value for key, value in config["algorithm"]["bounds"].items() if key in ("low", "high", "target")
    }
    grids = [f"{key}.{part}" for key, value in bounds.items() if isinstance(value, dict) for part in value]
    plain = [key for key, value in bounds.items() if not isinstance(value, dict)]
    weights = [
        f"correction.weights.{key}"
        for key in ("cap", "low", "high")
        if key in (config["correction"]["weights"] or {})
    ]
    for name in [*NUMBERS, *weights, *(f"algorithm.bounds.{key}" for key in grids + plain)]:
        value = _value(config, name)
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            yield f"{name}={value} must be a number"


def rate_complaints(config: Config) -> Iterator[str]:
    """Rates that can train."""
    rate, norm = config["optimizer"]["optimizer"]["lr"], config["optimizer"]["max_grad_norm"]
    if not rate > 0:
        yield f"optimizer.optimizer.lr={rate} would change nothing; write a positive number"
    if not norm > 0:
        yield f"optimizer.max_grad_norm={norm} would erase every gradient; write a positive number"


def checkpoint_complaints(trainer: Config) -> Iterator[str]:
    """Minutes between two checkpoints, or never."""
    minutes = trainer["checkpoint_minutes"]
    is_number = isinstance(minutes, (int, float)) and not isinstance(minutes, bool)
    if minutes is not None and not (is_number and minutes > 0):
        yield f"trainer.checkpoint_minutes={minutes} must be a positive number, or null for none by time"


def export_complaints(callbacks: Config) -> Iterator[str]:
    """How many exports are kept, and in what precision."""
    kept, dtype = callbacks["exports_kept"], callbacks["export_dtype"]
    if kept is not None and not (isinstance(kept, int) and not isinstance(kept, bool) and kept >= 1):
        yield f"callbacks.exports_kept={kept} must be a whole number of at least 1, or null for all"
    if dtype not in (None, *DTYPES):
        yield (
            f"callbacks.export_dtype={dtype} is none of its values; write one of {', '.join(DTYPES)}, or null"
        )


def target_complaints(config: Config) -> Iterator[str]:
    """Every `_target_` exists and takes the keys beside it that are set: the constructor's signature is the
    schema.
    """
    for path, node in _nodes(config, ""):
        try:
            options = options_of(node["_target_"])
        except UNREADABLE as error:
            yield (
                f"{path}._target_={node['_target_']} cannot be imported ({str(error).splitlines()[0]}); "
                "check its spelling"
            )
            continue
        for key in foreign_keys(node, options):
            if node[key] is not None:
                yield f"{path}.{key} is not an option of {node['_target_']}; it takes {', '.join(options)}"


def output_complaints(run_folder: str) -> Iterator[str]:
    """The run folder can be made."""
    folder = Path(run_folder).absolute()
    parent = next(parent for parent in [folder, *folder.parents] if parent.exists())
    if not parent.is_dir():
        yield f"run_folder={run_folder} cannot be made: {parent} is a file; write another output_root"
    elif not os.access(parent, os.W_OK | os.X_OK):
        yield f"run_folder={run_folder} cannot be made: {parent} is not writable; write another output_root"


def _value(config: Config, path: str) -> Any:
    for key in path.split("."):
        config = config[key]
    return config


def _grid_complaints(grid: Config, key: str) -> Iterator[str]:
    if set(grid) != {"start", "end", "step"}:
        yield f"{key} needs start, end and step, got {', '.join(grid)}"
    elif grid["step"] <= 0:
        yield f"{key}.step={grid['step']} never reaches the end; write a positive number"
    elif grid["start"] > grid["end"]:
        yield (
            f"{key}.start={grid['start']} is beyond {key}.end={grid['end']}, and the search moves up; "
            "exchange them"
        )


def _target_range_complaints(bounds: Config, key: str) -> Iterator[str]:
    target = bounds["target"]
    if bounds["measure"] == "share" and not 0 < target < 1:
        yield (
            f"{key}.target={target} is no share of a whole (measure=share); write a number between 0 and 1, "
            "e.g. 0.4"
        )
    elif target <= 0:
        yield f"{key}.target={target} is always met; write a positive number"


def _nodes(node: Any, path: str) -> Iterator[tuple[str, Config]]:
    """All sub-trees with a `_target_`, with their paths."""
    if isinstance(node, dict):
        if "_target_" in node:
            yield path, node
        for key, value in node.items():
            yield from _nodes(value, f"{path}.{key}" if path else key)
