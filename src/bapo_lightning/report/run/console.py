"""The summary of one run on the console, readable at 80 columns and when piped."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from bapo_lightning.report.metrics import HIGH_RAISED, MAIN, PANELS, TARGET_MET, Metric, metric_of, place_of
from bapo_lightning.report.progress.display import wrapped
from bapo_lightning.report.progress.terminal import Terminal
from bapo_lightning.report.run.summary import DROP_KINDS, IRREGULARITIES, TIME_PARTS
from bapo_lightning.system.printable import as_typed
from bapo_lightning.system.run_folder.checkpoint import list_checkpoints
from bapo_lightning.system.run_folder.record import STOPPED_EARLY

_STATUS_STYLES = {"finished": "green", "failed": "red"}
_MOST_EPOCHS = 4  # groups of epochs that are listed
_LABEL_WIDTH = 16  # of the longest label, so that all summaries are aligned
GO_ON = "the same command with resume=auto"
_JOURNALS = ("metrics.jsonl", "ledger.jsonl", "rollouts.jsonl", "schedule.jsonl")
_ARTEFACTS = ("summary.json", *_JOURNALS, "checkpoints", "plots")


def print_summary(summary: dict[str, Any], folder: str | Path, console: Console | None = None) -> None:
    """Prints a run's results, its cost and the location of its files."""
    console = console or Terminal()
    console.print()
    console.print(_headline(summary), soft_wrap=not console.is_terminal)
    lines = [(f"  {label}", text) for label, text in _summary_lines(summary) if text]
    way_on = {"interrupted": GO_ON, "failed": GO_ON, STOPPED_EARLY: f"{GO_ON}, without what stopped it"}
    if summary.get("status") in way_on and list_checkpoints(Path(folder, "checkpoints")):
        lines.append(("  to continue", way_on[summary["status"]]))
    indent = max([_LABEL_WIDTH, *(len(label) for label, _ in lines)]) + 2
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim", no_wrap=True, min_width=_LABEL_WIDTH)
    table.add_column(overflow="fold")
    for label, text in lines:
        parts = wrapped(text.split(", "), console.width - indent - 1, ", ")
        table.add_row(label, Text(",\n".join(parts)))
    console.print(table)
    files = [name for name in _ARTEFACTS if (Path(folder) / name).exists()]
    # Paths are never wrapped, so that they can be copied whole.
    heading = Text(f"{'  written to':<{_LABEL_WIDTH + 2}}", style="dim")
    console.print(heading + Text(f"{folder}/", style="bold"), soft_wrap=True)
    for line in wrapped(files, console.width - _LABEL_WIDTH - 2):
        console.print(Text(f"{'':{_LABEL_WIDTH + 2}}{line}"), soft_wrap=True)
    heading = Text(f"{'  look at it':<{_LABEL_WIDTH + 2}}", style="dim")
    path = shlex.quote(str(folder))
    console.print(heading + Text(as_typed(f"view RUN={path}", f"view {path}")), soft_wrap=True)
    console.print()


def _headline(summary: dict[str, Any]) -> Text:
    line = Text(f"{summary.get('algorithm') or 'run'}", style="bold")
    for label, key in (("", "regime"), ("staleness ", "staleness"), ("seed ", "seed")):
        if summary.get(key) is not None:
            line.append(f", {label}{summary[key]}", style="not bold")
    line.append(": ", style="not bold")
    line.append(summary["ending"], style=_STATUS_STYLES.get(summary["status"], "yellow"))
    done, planned = summary["updates"], summary["planned_updates"]
    updates = f"{done:,} of {planned:,} updates" if done < (planned or 0) else _plural(done, "update")
    return line.append(f" after {updates} in {duration_text(summary['seconds']['total'])}", style="not bold")


def _summary_lines(summary: dict[str, Any]) -> list[tuple[str, str]]:
    idle = {name: _percent(fraction) for name, fraction in summary["idle"].items()}
    return [
        *_metric_lines(summary["metrics"], summary["updates_without_gradient"]),
        ("age bound", _age_bound(**summary["age_bound"])),
        ("time", _time_split(summary["seconds"], summary["beside_training"])),
        ("idle", _labelled(idle)),
        ("throughput", _throughput(summary)),
        ("drops", _drops(summary["drops"])),
        ("epochs", _epochs(summary["draws"])),
        ("irregular", _irregularities(summary)),
        *_compared_to_recorded(summary["compared_to_recorded"]),
    ]


def _metric_lines(metrics: Mapping[str, Any], num_without_gradient: int) -> list[tuple[str, str]]:
    rows = [row for name in sorted(metrics, key=place_of) if not (row := metric_of(name)).source]
    lines: dict[str, list[str]] = {group: [] for group in PANELS}
    for row in rows:
        if row in MAIN and not row.jumps:
            lines[row.group].append(_trend(metrics[row.name], row))
        elif row.group in PANELS:
            typical = metrics[row.name]["extreme" if row.is_peak else "mean"]
            lines[row.group].append(f"{row.label} {_number(typical)}")
    searched = {TARGET_MET: ("positive_share", "target met in"), HIGH_RAISED: ("bounds", "upper raised in")}
    for name in searched.keys() & metrics.keys() if TARGET_MET in metrics else ():
        group, text = searched[name]
        lines[group].append(f"{text} {_percent(metrics[name]['mean'])}")
    if num_without_gradient:
        lines["grad_norm"].append(f"none in {_plural(num_without_gradient, 'update')}")
    # Shares that were always 0, such as the share of failed verdicts, are not worth printing.
    validated = [row for row in rows if row.name.startswith("val/")]
    held_out = [row for row in validated if "@" in row.name or any(metrics[row.name].values())]
    texts = [(group.replace("_", " "), ", ".join(shown)) for group, shown in lines.items()]
    texts[1:1] = [(row.name.removeprefix("val/"), _trend(metrics[row.name], row)) for row in held_out]
    return texts


def _compared_to_recorded(compared: dict[str, Any] | None) -> list[tuple[str, str]]:
    if compared is None:
        return []
    is_whole = compared["updates"] == compared["of"]
    so_far = "" if is_whole else f", its first {compared['updates']:,} of {compared['of']:,} updates"
    lines = [("compared with", f"{compared['label']}, recorded at {compared['commit'][:7]}{so_far}")]
    for name in sorted(compared["metrics"], key=lambda name: not name.startswith("val/")):
        shown = {key: _number(value) for key, value in compared["metrics"][name].items()}
        short = name.removeprefix("val/").removeprefix("train/").removeprefix("policy/")
        text = f"over {'training' if is_whole else 'these updates'} {shown['mean']} "
        text += f"(recorded {shown['recorded_mean']}), at the end {shown['last']} ({shown['recorded_last']})"
        lines.append((f"  {short}", text))
    return lines


def _trend(values: Mapping[str, float], metric: Metric) -> str:
    extreme = f"({metric.extreme} {_number(values['extreme'])})"
    return f"{_number(values['first'])} -> {_number(values['final'])} {extreme}"


def _age_bound(max_age: int | None, reached: int | None) -> str:
    return "" if None in (max_age, reached) else f"{max_age}, reached {reached}"


def _time_split(seconds: dict[str, float | None], overlapped: Sequence[str]) -> str:
    total = seconds["total"]
    if not total:
        return ""
    parts = {part: seconds[part] for part in (*TIME_PARTS, "other")}
    names = {part: f"{part} (beside)" if part in overlapped else part for part in parts}
    return _labelled({names[part]: _percent(spent / total) for part, spent in parts.items() if spent})


def _throughput(summary: dict[str, Any]) -> str:
    rate = summary["rollout_tokens_per_second"]
    rollout = [] if rate is None else [f"{rate:,.0f} tokens/s in rollout"]
    totals = [f"{summary[name]:,} {name}" for name in ("samples", "tokens") if summary[name] is not None]
    return ", ".join([*rollout, *totals])


def _drops(drops: dict[str, int | None]) -> str:
    counted = {name.replace("_", " "): count for name in DROP_KINDS if (count := drops[name]) is not None}
    return _counts(counted) or ("none" if counted else "")


def _epochs(draws: Mapping[str, Mapping[str, int]]) -> str:
    """Fates of the problems by epoch: the newest entries, with identical successive epochs as one."""
    groups: list[tuple[list[str], str]] = []
    for epoch, fates in draws.items():
        text = _counts(fates).replace(", ", " and ")
        if groups and groups[-1][1] == text:
            groups[-1][0].append(epoch)
        else:
            groups.append(([epoch], text))
    texts = [
        f"{epochs[0]}: {text}" if len(epochs) == 1 else f"{epochs[0]} to {epochs[-1]}: {text} in each"
        for epochs, text in groups
    ]
    hidden = len(texts) - _MOST_EPOCHS
    earlier = [f"0 to {int(groups[hidden][0][0]) - 1}: see summary.json"] if hidden > 0 else []
    return ", ".join([*earlier, *texts[-_MOST_EPOCHS:]])


def _counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count:,} {name}" for name, count in counts.items() if count)


def _irregularities(summary: dict[str, Any]) -> str:
    nouns = ("skipped update", "non-finite value", "unreadable line", "rolled-back row")
    counts = [(summary.get(key), noun) for key, noun in zip(IRREGULARITIES, nouns, strict=True)]
    return ", ".join(_plural(count, noun) for count, noun in counts if count)


def _labelled(texts: Mapping[str, str]) -> str:
    return ", ".join(f"{name} {text}" for name, text in texts.items() if text)


def _number(value: float) -> str:
    if 0 < abs(value) < 0.01:
        return f"{value:.2g}"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.1f}" if abs(value) >= 10 else f"{value:.3f}"


def _percent(fraction: float | None) -> str:
    if fraction is None:
        return ""
    return "<1%" if 0 < fraction < 0.005 else f"{fraction:.0%}"


def _plural(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def duration_text(seconds: float) -> str:
    """A time span in seconds, minutes or hours."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min" if hours else f"{minutes} min {rest:02d} s"
