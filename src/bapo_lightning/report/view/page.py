"""A run as one HTML file that needs nothing else, and that reloads itself while the run goes on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from bapo_lightning.report.page.charts import AXES
from bapo_lightning.report.page.environment import page_environment
from bapo_lightning.report.view.charts import bound_choices, drawn, phases
from bapo_lightning.run_folder.lock import is_held
from bapo_lightning.run_folder.record import Row, RunRecord, finite, read_rollouts, read_run
from bapo_lightning.run_folder.text_file import write_text

PAGE = "view.html"  # in the run folder
TEMPLATES = Path(__file__).with_name("templates")
ALARM = "alarms/"
_MOST_STEPS = 40  # updates whose samples are in the page, evenly spread, with the first and the last
_MOST_CHARACTERS = 4000  # of a response, and of an environment's replies to it
_MOST_TOKENS = 1000  # of a response, coloured
_MOST_CHOICES = 8  # pairs of bounds that are listed one by one


def write_view(folder: Path, reload_seconds: float) -> tuple[Path, bool]:
    """Writes the page of the run in `folder`; returns its path, and whether the run goes on.

    Args:
        folder: run folder.
        reload_seconds: after which the page of a run that goes on reloads itself.

    Raises:
        DataError: this is no run folder.
    """
    record = read_run(folder)
    if record.manifest.get("status") == "running" and not is_held(folder):
        record.manifest["status"] = "killed"  # without a moment to say so
    is_alive = record.manifest.get("status") == "running"
    page = render_view(record, read_rollouts(folder), reload_seconds if is_alive else 0)
    return write_text(folder / PAGE, page), is_alive


def render_view(record: RunRecord, rollouts: list[Row], reload_seconds: float) -> str:
    """The page of a run, which reloads itself unless `reload_seconds` is 0."""
    config, last = record.config, record.rows[-1] if record.rows else {}
    choices = bound_choices(record)
    listed, rest = choices[:_MOST_CHOICES], choices[_MOST_CHOICES:]
    if rest:
        listed = [*listed, {"low": None, "high": None, "share": sum(choice["share"] for choice in rest)}]
    samples = samples_by_update(rollouts)
    template = page_environment(TEMPLATES).get_template("view.html.j2")
    return template.render(
        record=record,
        manifest=record.manifest,
        num_updates=_num_updates(record.manifest, config),
        axes=AXES,
        **drawn(record),
        choices=listed,
        phases=phases(record.rows),
        alarms=sorted(name.removeprefix(ALARM) for name, on in last.items() if name.startswith(ALARM) and on),
        reward=finite(last.get("train/reward")),
        samples=samples,
        has_turns=any("turns" in row for update in samples for row in update["rows"]),
        reload_seconds=reload_seconds,
    )


def samples_by_update(rollouts: list[Row]) -> list[dict[str, Any]]:
    """{step, rows} of the updates whose texts were recorded; of many, some."""
    by_step: dict[int, list[Row]] = {}
    for row in rollouts:
        shown = {**row, "response": _cut(str(row.get("response", "")))}
        if "tokens" in row:
            shown["tokens"] = _first_tokens(row["tokens"])
        if "turns" in row:
            shown["turns"] = _cut_turns(row["turns"])
        by_step.setdefault(int(row["step"]), []).append(shown)
    steps = sorted(by_step)
    if len(steps) > _MOST_STEPS:
        steps = [steps[round(index * (len(steps) - 1) / (_MOST_STEPS - 1))] for index in range(_MOST_STEPS)]
    return [{"step": step, "rows": by_step[step]} for step in dict.fromkeys(steps)]


def _num_updates(manifest: dict[str, Any], config: dict[str, Any]) -> int | None:
    batches, staleness = config.get("scale", {}).get("num_rollout_batches"), manifest.get("staleness")
    return batches * staleness if isinstance(batches, int) and isinstance(staleness, int) else None


def _first_tokens(tokens: dict[str, Any]) -> dict[str, Any]:
    """Per-token values of the first tokens of a response."""
    known = max(_MOST_TOKENS - tokens["first"], 0)
    per_token = {name: tokens[name][:known] for name in ("ratio", "age", "clipped")}
    left_out = len(tokens["text"]) - _MOST_TOKENS
    rest = [f" ... ({left_out} tokens more)"] if left_out > 0 else []
    first = {"text": tokens["text"][:_MOST_TOKENS] + rest, "first": tokens["first"], **per_token}
    if "feedback_at" in tokens:
        first["feedback_at"] = [place for place in tokens["feedback_at"] if place <= _MOST_TOKENS]
    return first


def _cut_turns(turns: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The turns of a conversation, of which the policy and the environment have so many characters each."""
    left = dict.fromkeys((turn["by"] for turn in turns), _MOST_CHARACTERS)
    cut = []
    for turn in turns:
        cut.append({**turn, "text": _cut(turn["text"], left[turn["by"]])})
        left[turn["by"]] = max(0, left[turn["by"]] - len(turn["text"]))
    return cut


def _cut(text: str, most: int = _MOST_CHARACTERS) -> str:
    left_out = len(text) - most
    return text if left_out <= 0 else f"{text[:most]} ... ({left_out} characters more)"
