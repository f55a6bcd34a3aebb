"""Which problems a run can take: those whose whole prompt fits."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence

from bapo_lightning.errors import DataError
from bapo_lightning.types import Problem


def keep_short_prompts(
    problems: Sequence[Problem], encode: Callable[[Problem], array[int]], max_prompt_tokens: int, what: str
) -> tuple[list[Problem], list[Problem]]:
    """Skip problems with an over-long prompt: one that is cut may have lost its question, so none is ever
    truncated.

    Args:
        problems: in the order to keep.
        encode: problem -> token ids of its prompt.
        max_prompt_tokens: the longest prompt to keep, in tokens.
        what: name of the set in the error, e.g. "data.train".

    Returns:
        The problems kept, and those skipped.

    Raises:
        DataError: no problem is left.
    """
    lengths = [len(encode(problem)) for problem in problems]
    kept = [problem for problem, length in zip(problems, lengths, strict=True) if length <= max_prompt_tokens]
    skipped = [
        problem for problem, length in zip(problems, lengths, strict=True) if length > max_prompt_tokens
    ]
    if not lengths:
        raise DataError(f"{what} holds no problems; check its options")
    if not kept:
        raise DataError(
            f"none of the {len(lengths)} problems of {what} fits "
            f"scale.max_prompt_tokens={max_prompt_tokens}: the shortest prompt has {min(lengths)} tokens; "
            f"write scale.max_prompt_tokens={max(lengths)} to keep them all"
        )
    return kept, skipped
