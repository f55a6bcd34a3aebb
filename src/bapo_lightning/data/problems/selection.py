"""The problems of a run: what was read, less what filters and the prompt limit take away, with the account of
it.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bapo_lightning.data.problems.filters import Filter, Filtered, apply_filters
from bapo_lightning.data.problems.mixture import Mixing, Mixture
from bapo_lightning.data.problems.problem_set import ProblemSet
from bapo_lightning.data.problems.prompt_limit import keep_short_prompts
from bapo_lightning.types import Problem

TOO_LONG = "prompt too long"
NOT_TAKEN = "beyond scale.validation_problems"


@dataclass(frozen=True, slots=True)
class Selection:
    """Problems to train and to validate on.

    Attributes:
        train: problems to draw.
        overlong: training problems whose prompts are too long.
        mixing: weights of a mixture's sets; None without weights.
        validation: problems by the name of the set.
        filtered: what the filters did.
        account: all of it in numbers, for the console and the manifest, see `account_of`.
    """

    train: list[Problem]
    overlong: list[Problem]
    mixing: Mixing | None
    validation: dict[str, list[Problem]]
    filtered: Filtered
    account: dict[str, Any]


def select(
    train: Sequence[Problem],
    validation: Mapping[str, Sequence[Problem]],
    filters: Mapping[str, Filter],
    encode: Callable[[Problem], array[int]],
    max_prompt_tokens: int,
    max_validation_problems: int | None = None,
) -> Selection:
    """Filters take from the training problems only; the prompt limit holds for all. Raises DataError when a
    set is left without problems.

    Args:
        train: problems read, a `Mixture` with weights perhaps.
        validation: problems read, by the name of the set.
        filters: by name, in their order.
        encode: problem -> token ids of its prompt.
        max_prompt_tokens: the longest prompt to keep.
        max_validation_problems: answer so many of each validation set, the first ones; filters see all of
            them. None: all.
    """
    filtered = apply_filters(train, filters, validation)
    kept, overlong = keep_short_prompts(filtered.kept, encode, max_prompt_tokens, "data.train")
    account = {"train": account_of(train, filtered.counts, len(overlong), len(kept)), "validation": {}}
    parts = train.parts if isinstance(train, Mixture) else {}
    if parts:
        left = {problem.id for problem in kept}
        account["train"]["sets"] = {
            name: account_of(part, {}, 0, sum(problem.id in left for problem in part))
            for name, part in parts.items()
        }
    mixing = train.mixing if isinstance(train, Mixture) else None
    if mixing is not None:
        account["train"]["shares"] = dict(mixing.shares)
    held_out = {}
    for name, problems in validation.items():
        taken = problems[:max_validation_problems]
        held_out[name], cut = keep_short_prompts(taken, encode, max_prompt_tokens, f"data.validation.{name}")
        beyond = {NOT_TAKEN: len(problems) - len(taken)} if len(taken) < len(problems) else {}
        account["validation"][name] = account_of(problems, beyond, len(cut), len(held_out[name]))
    return Selection(kept, overlong, mixing, held_out, filtered, account)


def account_of(
    problems: Sequence[Problem], filtered: Mapping[str, int], num_overlong: int, num_kept: int
) -> dict[str, Any]:
    """What became of the rows of a set: `rows` of its table, `left_out` by reason when it was read, `read`,
    `removed` by reason, `kept`.
    """
    removed = {**filtered, **({TOO_LONG: num_overlong} if num_overlong else {})}
    read = {"read": len(problems), "removed": removed, "kept": num_kept}
    if not isinstance(problems, ProblemSet):
        return read
    return {"from": problems.origin, "rows": problems.num_rows, "left_out": problems.left_out, **read}


def account_lines(account: Mapping[str, Any]) -> list[str]:
    """The account in words, a line for each set."""
    train = account["train"]
    lines = [f"train: {_told(train)}"]
    for name, part in train.get("sets", {}).items():
        share = f", {train['shares'][name]:.0%} of the draws" if "shares" in train else ""
        lines.append(f"  of them {name}{share}: {_told(part)}")
    return lines + [
        f"validation {name}: {_told(held_out)}" for name, held_out in account["validation"].items()
    ]


def _told(part: Mapping[str, Any]) -> str:
    told = f"{part['kept']} problems"
    if part["kept"] != part["read"]:
        told += f" of the {part['read']} read"
    if "from" in part:
        told += f" from {part['from']}" + (f" ({part['rows']} rows)" if part["rows"] != part["read"] else "")
    gone = {**part.get("left_out", {}), **part["removed"]}
    return told + (
        f"; left out: {', '.join(f'{count} {reason}' for reason, count in gone.items())}" if gone else ""
    )
