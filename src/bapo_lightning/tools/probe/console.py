"""Output of a probe."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict

from bapo_lightning.tools.probe.diagnosis import mean_of
from bapo_lightning.tools.probe.session import Found


def lines(found: Found, url: str, folder: str) -> Iterator[str]:
    """A probe as a table with its verdict."""
    made = found.diagnosis
    yield (
        f"{url} against {folder}: {found.num_prompts} prompts, {found.num_scored} of their tokens scored, "
        f"{found.num_sampled} sampled"
    )
    if made.gaps:
        yield f"  {'nats':<18}{'mean':>10}{'largest':>10}{'rounding: mean':>18}{'largest':>10}"
    for dtype, parts in made.gaps.items():
        for name, gap in parts.items():
            own = f"{gap.mean:>10.2g}{gap.largest:>10.2g}"
            yield f"  {dtype:<10}{name:<8}{own}{gap.rounding_mean:>18.2g}{gap.rounding_largest:>10.2g}"
    for name, each in made.positions.items():
        if each.apart == 0.0:
            yield f"  {name} has the same log-probs in {made.dtype}"
        else:
            yield (
                f"  {each.share:.3f} ± {each.error:.2g} of the way to {name}, which differs by a mean of "
                f"{each.apart:.2g} nats"
            )
    yield from (f"  note: {note}" for note in found.notes)
    yield f"{made.verdict}: {made.reason}"


def line(found: Found, number: int, folder: str) -> str:
    """One of several probes, in one line."""
    made = found.diagnosis
    away = f"mean {mean_of(made.gaps[made.dtype]):.2g} nats in {made.dtype}; " if made.gaps else ""
    return f"{number:>4}  {made.verdict:<10} {folder}  {away}{made.reason}"


def as_json(found: Found, number: int, url: str, folder: str) -> str:
    """A probe as a line of JSON."""
    return json.dumps({"number": number, "url": url, "folder": folder, **asdict(found)})
