"""Output of a probe."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict

from bapo_lightning.tools.probe.diagnosis import mean_of
from bapo_lightning.tools.probe.session import Found


def lines(result: Found, url: str, folder: str) -> Iterator[str]:
    """A probe as a table with its verdict."""
    judged = result.diagnosis
    yield (
        f"{url} against {folder}: {result.num_prompts} prompts, {result.num_scored} of their tokens scored, "
        f"{result.num_sampled} sampled"
    )
    if judged.gaps:
        yield f"  {'nats':<18}{'mean':>10}{'largest':>10}{'rounding: mean':>18}{'largest':>10}"
    for dtype, parts in judged.gaps.items():
        for name, gap in parts.items():
            columns = f"{gap.mean:>10.2g}{gap.largest:>10.2g}"
            yield f"  {dtype:<10}{name:<8}{columns}{gap.rounding_mean:>18.2g}{gap.rounding_largest:>10.2g}"
    for name, each in judged.positions.items():
        if each.apart == 0.0:
            yield f"  {name} has the same log-probs in {judged.dtype}"
        else:
            yield (
                f"  {each.share:.3f} ± {each.error:.2g} of the way to {name}, which differs by a mean of "
                f"{each.apart:.2g} nats"
            )
    yield from (f"  note: {note}" for note in result.notes)
    yield f"{judged.verdict}: {judged.reason}"


def line(result: Found, number: int, folder: str) -> str:
    """One of several probes, in one line."""
    judged = result.diagnosis
    away = f"mean {mean_of(judged.gaps[judged.dtype]):.2g} nats in {judged.dtype}; " if judged.gaps else ""
    return f"{number:>4}  {judged.verdict:<10} {folder}  {away}{judged.reason}"


def as_json(result: Found, number: int, url: str, folder: str) -> str:
    """A probe as a line of JSON."""
    return json.dumps({"number": number, "url": url, "folder": folder, **asdict(result)})
