"""The summary of one run on the console, readable at 80 columns and when piped."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from bapo_lightning.report.run.summary import DROP_KINDS, TIME_PARTS

if TYPE_CHECKING:
    from rich.console import Console

_STATUS_STYLES = {"finished": "green", "interrupted": "yellow", "running": "yellow", "failed": "red"}
_LABEL_WIDTH = 16  # of the longest label, so that all summaries are aligned
_ARTEFACTS = ("summary.json", "metrics.jsonl", "ledger.jsonl", "rollouts.jsonl", "checkpoints", "plots")


def print_summary(summary: dict[str, Any], folder: str | Path, console: Console | None = None) -> None:
    """Prints what a run achieved, what it cost and where its files are; `summary` is of `write_summary`."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = console or Console()
    console.print()
    console.print(_headline(summary), soft_wrap=True)
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim", no_wrap=True, min_width=_LABEL_WIDTH)
    table.add_column(overflow="fold")
    for label, text in _summary_lines(summary):
        table.add_row(f"  {label}", Text(text))
    console.print(table)
    found = [name for name in _ARTEFACTS if (Path(folder) / name).exists()]
    # Paths are never wrapped, so that they can be copied whole.
    console.print(
        Text(f"{'  written to':<{_LABEL_WIDTH + 2}}", style="dim") + Text(f"{folder}/", style="bold"),
        soft_wrap=True,
    )
    if found:
        console.print(Text(f"{'':{_LABEL_WIDTH + 2}}{'  '.join(found)}"), soft_wrap=True)
    console.print()


def _headline(summary: dict[str, Any]) -> Any:
    from rich.text import Text

    status = str(summary.get("status") or "status unknown")
    line = Text(f"{summary.get('algorithm') or 'run'}", style="bold")
    for label, key in (("", "regime"), ("staleness ", "staleness"), ("seed ", "seed")):
        if summary.get(key) is not None:
            line.append(f", {label}{summary[key]}", style="not bold")
    line.append(": ", style="not bold")
    line.append(status, style=_STATUS_STYLES.get(status, "yellow"))
    return line.append(
        f" after {_plural(summary['updates'], 'update')} in {_duration(summary['seconds']['total'])}",
        style="not bold",
    )


def _summary_lines(summary: dict[str, Any]) -> list[tuple[str, str]]:
    lines = [
        ("reward", _trend(summary["reward"], "best")),
        *((name.removeprefix("val/"), _validation(values)) for name, values in summary["validation"].items()),
        ("entropy", _trend(summary["entropy"], "lowest", " nats")),
        ("gradient norm", _labelled([("largest", _number(summary["grad_norm_max"]))])),
        ("positive share", _share(summary["positive_share"])),
        ("ratio bounds", _bounds(summary["bounds"])),
        ("clipped tokens", _clip_fraction(summary["clip_fraction"])),
        (
            "token age",
            _labelled(
                [("mean", _number(summary["age"]["mean"])), ("max", _number(summary["age"]["max"]))],
                " updates",
            ),
        ),
        ("time", _time_split(summary["seconds"])),
        ("idle", _idle(summary.get("idle") or {})),
        ("throughput", _throughput(summary)),
        ("drops", _drops(summary["drops"])),
        *_draws(summary.get("draws") or {}),
        ("irregular", _irregularities(summary)),
    ]
    return [(label, text) for label, text in lines if text]


def _trend(trend: dict[str, float | None], extreme: str, unit: str = "") -> str:
    if trend["first"] is None:
        return "not recorded"
    return (
        f"{_number(trend['first'])} -> {_number(trend['last'])}{unit}  ({extreme} {_number(trend[extreme])})"
    )


def _validation(values: dict[str, float]) -> str:
    best = f"  (best {_number(values['best'])})" if "best" in values else ""
    return f"{_number(values['first'])} -> {_number(values['last'])}{best}"


def _share(share: dict[str, float | None]) -> str:
    named = [
        ("mean", _number(share["overall"])),
        ("first half", _number(share["first_half"])),
        ("unclipped", _number(share["unclipped"])),
    ]
    return _labelled([*named, ("target met in", _percent(share["target_met_fraction"]))])


def _bounds(bounds: dict[str, float | None]) -> str:
    means = [("low", _number(bounds["clip_low_mean"])), ("high", _number(bounds["clip_high_mean"]))]
    return _labelled([*means, ("high raised in", _percent(bounds["clip_high_raised_fraction"]))])


def _clip_fraction(fractions: dict[str, float | None]) -> str:
    return _labelled([(name, _percent(fractions[name], 1)) for name in ("total", "positive", "negative")])


def _time_split(seconds: dict[str, float | None]) -> str:
    total = seconds["total"]
    if not total:
        return ""
    return _labelled(
        [(part, _percent((seconds[part] or 0.0) / total)) for part in (*TIME_PARTS, "other") if seconds[part]]
    )


def _throughput(summary: dict[str, Any]) -> str:
    rate, samples, tokens = summary["rollout_tokens_per_second"], summary["samples"], summary["tokens"]
    rollout = None if rate is None else f"{rate:,.0f} tokens/s in rollout"
    made = [
        None if count is None else f"{count:,} {name}"
        for count, name in ((samples, "samples"), (tokens, "tokens"))
    ]
    return ", ".join(text for text in (rollout, *made) if text)


def _idle(shares: dict[str, float | None]) -> str:
    return _labelled([(name, _percent(share)) for name, share in shares.items() if share is not None])


def _draws(draws: dict[str, dict[str, int]]) -> list[tuple[str, str]]:
    """Fates of the problems in the newest three epochs of the stream."""
    newest = list(draws.items())[-3:]
    return [
        (f"epoch {epoch}", ", ".join(f"{count:,} {fate}" for fate, count in fates.items()))
        for epoch, fates in newest
    ]


def _drops(drops: dict[str, int | None]) -> str:
    counted = {name: drops[name] for name in DROP_KINDS if drops[name] is not None}
    if not counted:
        return ""
    return (
        ", ".join(f"{count:,} {name.replace('_', ' ')}" for name, count in counted.items() if count) or "none"
    )


def _irregularities(summary: dict[str, Any]) -> str:
    counts = [
        (summary.get("skipped_updates"), "skipped update"),
        (summary["non_finite_values"], "non-finite value"),
    ]
    counts += [
        (summary.get("unreadable_lines"), "unreadable line"),
        (summary.get("rolled_back_rows"), "rolled-back row"),
    ]
    return ", ".join(_plural(count, name) for count, name in counts if count)


def _labelled(pairs: list[tuple[str, str]], unit: str = "") -> str:
    """Joins the recorded values as 'name value, name value'; empty when there is none."""
    text = ", ".join(f"{name} {value}" for name, value in pairs if value)
    return text + unit if text else ""


def _number(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.1f}" if abs(value) >= 10 else f"{value:.3f}"


def _percent(fraction: float | None, decimals: int = 0) -> str:
    if fraction is None:
        return ""
    smallest = 10.0**-decimals
    return f"<{smallest:g}%" if 0 < 100 * fraction < smallest / 2 else f"{100 * fraction:.{decimals}f}%"


def _plural(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def _duration(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min" if hours else f"{minutes} min {rest:02d} s"
