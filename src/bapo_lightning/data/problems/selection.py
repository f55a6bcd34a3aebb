"""The problems that remain for a run after filters and prompt limit, and an account of the rest."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bapo_lightning.data.problems.columns import ProblemSet
from bapo_lightning.data.problems.filters import Filter, Filtered, apply_filters
from bapo_lightning.data.problems.mixture import Mixing, Mixture
from bapo_lightning.data.problems.prompt_lengths import Fits, none_fits
from bapo_lightning.data.problems.prompts import Encode
from bapo_lightning.data.problems.stream import fingerprint
from bapo_lightning.system.errors import DataError
from bapo_lightning.types import Problem

_DIGITS = 16  # of the digest of a set


@dataclass(frozen=True, slots=True)
class Selection:
    """Problems to train and to validate on."""

    train: list[Problem]
    overlong: list[Problem]  # training problems whose prompts are too long
    mixing: Mixing | None  # weights of a mixture's sets
    validation: dict[str, list[Problem]]  # by name of the set
    filtered: Filtered
    account: dict[str, Any]  # the same in numbers, for the console and the manifest, see `account_of`


def select(
    train: Sequence[Problem],
    validation: Mapping[str, Sequence[Problem]],
    filters: Mapping[str, Filter],
    encode: Encode,
    max_prompt_tokens: int,
    max_validation_problems: int | None = None,
    fits: Fits = none_fits,
) -> Selection:
    """Applies the filters, in their order, to the training problems as read, and the prompt limit to all
    problems. The first `max_validation_problems` of each validation set are used (None: all); filters see all
    of them. Prompts that certainly fit, by `fits`, are not tokenised. Raises DataError if a set is left
    without problems.
    """
    filtered = apply_filters(train, filters, validation)
    kept, overlong = keep_short_prompts(filtered.kept, encode, max_prompt_tokens, "data.train", fits)
    removed = {**filtered.counts, "prompt too long": len(overlong)}
    account = {"train": account_of(train, removed, len(kept)), "validation": {}}
    mixing = None
    if isinstance(train, Mixture):
        left, mixing = {problem.id for problem in kept}, train.mixing
        account["train"]["sets"] = {
            name: account_of(part, {}, sum(problem.id in left for problem in part))
            for name, part in train.parts.items()
        }
        if mixing is not None:
            account["train"]["shares"] = dict(mixing.shares)
    held_out, trained = {}, {_normalised(problem.prompt) for problem in kept}
    for name, problems in validation.items():
        taken = problems[:max_validation_problems]
        what = f"data.validation.{name}"
        held_out[name], cut = keep_short_prompts(taken, encode, max_prompt_tokens, what, fits)
        beyond = len(problems) - len(taken)
        removed = {"beyond scale.validation_problems": beyond, "prompt too long": len(cut)}
        digest = fingerprint(held_out[name])[:_DIGITS]
        account["validation"][name] = account_of(problems, removed, len(held_out[name])) | {
            "digest": digest,
            "also_trained": sum(_normalised(problem.prompt) in trained for problem in problems),
        }
    return Selection(kept, overlong, mixing, held_out, filtered, account)


def _normalised(text: str) -> str:
    return " ".join(text.casefold().split())


def overlap_warnings(account: Mapping[str, Any]) -> list[str]:
    """Returns warnings that name validation sets with problems of the training set, and their numbers."""
    return [
        f"{part['also_trained']} of the {part['read']} problems of data.validation.{name} are in data.train "
        "as well: its accuracy is not a held-out accuracy; write data/filters=math, which removes such "
        "problems from data.train, or choose another set"
        for name, part in account["validation"].items()
        if part["also_trained"]
    ]


def keep_short_prompts(
    problems: Sequence[Problem], encode: Encode, max_prompt_tokens: int, what: str, fits: Fits = none_fits
) -> tuple[list[Problem], list[Problem]]:
    """Divides problems, in their order, into those to keep and those whose prompt is too long. Prompts are
    never truncated, since a cut may remove the question. Those that certainly fit, by `fits`, are not
    tokenised. Raises DataError if none of the set `what` is left.
    """
    if not problems:
        raise DataError(f"{what} holds no problems; check its options")
    kept, skipped, lengths = list[Problem](), list[Problem](), list[int]()
    for problem, is_short in zip(problems, fits(problems, max_prompt_tokens), strict=True):
        if not is_short:
            lengths.append(len(encode(problem)))
            is_short = lengths[-1] <= max_prompt_tokens
        (kept if is_short else skipped).append(problem)
    if not kept:
        raise DataError(
            f"none of the {len(lengths)} problems of {what} fits "
            f"scale.max_prompt_tokens={max_prompt_tokens}: the shortest prompt has {min(lengths)} tokens; "
            f"write scale.max_prompt_tokens={max(lengths)} to keep them all"
        )
    return kept, skipped


def account_of(problems: Sequence[Problem], removed: Mapping[str, int], num_kept: int) -> dict[str, Any]:
    """Returns the fate of a set's rows: `rows`, `left_out` (when read) and `removed` by reason, `kept`."""
    reasons = {reason: count for reason, count in removed.items() if count}
    read = {"read": len(problems), "removed": reasons, "kept": num_kept}
    if not isinstance(problems, ProblemSet):
        return read
    return {"from": problems.origin, "rows": problems.num_rows, "left_out": problems.left_out, **read}


def account_lines(account: Mapping[str, Any]) -> list[str]:
    """Returns the account in words, a line for each set."""
    train = account["train"]
    lines = [f"train: {_in_words(train)}"]
    for name, part in train.get("sets", {}).items():
        share = f", {train['shares'][name]:.0%} of the draws" if "shares" in train else ""
        lines.append(f"  of them {name}{share}: {_in_words(part)}")
    return lines + [f"validation {name}: {_in_words(part)}" for name, part in account["validation"].items()]


def _in_words(part: Mapping[str, Any]) -> str:
    words = f"{part['kept']} problems"
    if part["kept"] != part["read"]:
        words += f" of the {part['read']} read"
    if "from" in part:
        words += f" from {part['from']}" + (f" ({part['rows']} rows)" if part["rows"] != part["read"] else "")
    gone = {**part.get("left_out", {}), **part["removed"]}
    counts = ", ".join(f"{count} {reason}" for reason, count in gone.items())
    return f"{words}; left out: {counts}" if gone else words
