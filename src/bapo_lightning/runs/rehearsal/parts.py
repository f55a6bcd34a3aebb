"""Parts that ran in a rehearsal, read from the files of its run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import isfinite
from pathlib import Path

from bapo_lightning.run_folder.checkpoint import list_checkpoints
from bapo_lightning.run_folder.record import Row, read_rows
from bapo_lightning.runs.rehearsal.script import Script

WIDTHS = 22, 5, 9  # characters of the first columns of the table


@dataclass(frozen=True)
class Part:
    """One line of a rehearsal's table."""

    part: str
    ran: bool
    seconds: float
    note: str = ""


def parts_of_run(script: Script, folder: Path) -> Iterator[Part]:
    """Yields the parts of a run that has ended, with the seconds that they took in all."""
    rows = read_rows(folder)
    config, regime = script.plain, script.config.staleness
    wanted = config["scale"]["num_rollout_batches"] * regime.updates_per_rollout_batch
    samples, tokens = (int(rows[-1][f"progress/{name}"]) if rows else 0 for name in ("samples", "tokens"))
    yield Part(
        "sampling", tokens > 0, _sum(rows, "time/rollout_seconds"), f"{samples} responses, {tokens} tokens"
    )
    differences = [row["sync/logp_diff_mean"] for row in rows if "sync/logp_diff_mean" in row]
    worst = f", {max(differences):.2g} nats apart at most" if differences else ""
    seconds = _sum(rows, "time/sync_seconds")
    yield Part("weight sync", bool(differences), seconds, f"proven in {len(differences)} updates{worst}")
    yield Part(
        "rewards", samples > 0, _sum(rows, "time/reward_seconds"), f"mean {_mean(rows, 'train/reward'):.2f}"
    )
    moved = [row for row in rows if row.get("train/grad_norm", 0.0) > 0 and isfinite(row["train/grad_norm"])]
    note = f"{len(rows)} of {wanted}, {len(moved)} with a gradient"
    yield Part("updates", len(rows) == wanted and bool(moved), _sum(rows, "time/update_seconds"), note)
    oldest = max((row.get("staleness/age_max", 0.0) for row in rows), default=0.0)
    yield Part(
        "staleness", oldest <= regime.age_bound, 0.0, f"age at most {oldest:g}, bound {regime.age_bound}"
    )
    validated = sorted({name.split("/")[1] for row in rows for name in row if name.startswith("val/")})
    expected = sorted(config["data"]["validation"]) if config["callbacks"]["validation"]["every"] else []
    yield Part("validation", validated == expected, 0.0, ", ".join(validated))
    saved = list_checkpoints(folder / "checkpoints")
    yield Part("checkpoints", bool(saved), 0.0, ", ".join(path.name for path in reversed(saved)))


def table(parts: Sequence[Part]) -> str:
    """Formats parts for the console: part, ran, seconds, and what is to be said."""
    first, second, third = WIDTHS
    lines = [f"{'part':<{first}}{'ran':<{second}}{'seconds':>{third}}"]
    for part in parts:
        seconds = f"{part.seconds:.1f}" if part.seconds else ""
        line = f"{part.part:<{first}}{'yes' if part.ran else 'NO':<{second}}{seconds:>{third}}  {part.note}"
        lines.append(line.rstrip())
    return "\n".join(lines)


def _sum(rows: Sequence[Row], name: str) -> float:
    return sum(row.get(name, 0.0) for row in rows)


def _mean(rows: Sequence[Row], name: str) -> float:
    return _sum(rows, name) / max(len(rows), 1)
