"""A W&B report on compared runs: a section for each staleness, the same panels in each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from wandb_workspaces import expr
from wandb_workspaces.reports.v2 import interface as wr

from bapo_lightning.callbacks.loggers.wandb import STEP, staleness_tag
from bapo_lightning.report.metrics import HELD_OUT, Metric, metric_of
from bapo_lightning.system.errors import DataError, first_line
from bapo_lightning.system.run_folder.config_keys import leaves, value_text
from bapo_lightning.tools.comparison.runs import CONDITION_KEYS, Run
from bapo_lightning.tools.comparison.table import Comparison
from bapo_lightning.tools.comparison.wandb_group import WandbGroup

HELD_OUT_NAMES = r"^val/.+/avg@\d+$"  # W&B has a metric for each set instead of the mean over them
ALGORITHM = "algorithm.name"
_COLUMNS, _WIDTH, _HEIGHT = 3, 8, 6  # of a report's 24 columns
_LONGEST_TITLE = 128  # characters that W&B accepts
_LEGEND = (
    "A line is the mean over the runs of one algorithm and setting, a band reaches from the least to the "
    "largest of them. Runs that have not finished are shown, too."
)


def make_report(comparison: Comparison, groups: Sequence[WandbGroup], title: str) -> wr.Report:
    """The report on the runs of `groups`, not saved yet, with the comparison's sections and lines."""
    blocks: list[Any] = [wr.P(_LEGEND)]
    for staleness in sorted({run.staleness for run in comparison.usable}):
        runs = [run for run in comparison.usable if run.staleness == staleness]
        keys = grouping(runs)
        colours: dict[Any, Any] = {
            wr.RunsetGroup(group.name, _group_keys(run, keys)): comparison.looks[run.setting].colour
            for group in groups
            for run in runs
        }
        runsets = [_runset(group, staleness, keys) for group in groups]
        blocks += [
            wr.H2(f"Staleness {staleness}"),
            wr.PanelGrid(runsets=runsets, panels=_panels(comparison.metrics), custom_run_colors=colours),
        ]
    entity, project = groups[0].entity, groups[0].project
    return wr.Report(project, entity, title[:_LONGEST_TITLE], blocks=blocks, width="fluid")


def publish(report: wr.Report) -> str:
    """Saves a report at W&B and returns its address. Raises DataError if W&B rejects it."""
    try:
        report.save()
    except Exception as error:  # W&B has a type for each of network, account, project
        text = f"W&B did not take the report ({first_line(error)}); log in with `wandb login`"
        raise DataError(text) from error
    return str(report.url)


def grouping(runs: Sequence[Run]) -> list[str]:
    """Keys whose values have a line each: algorithm, settings, and regime keys that separate conditions."""
    settings = dict.fromkeys(key for run in runs for key in run.setting_keys)
    tables = [dict(leaves(run.config)) for run in runs]
    regime = [key for key in CONDITION_KEYS if len({table.get(key) for table in tables}) > 1]
    return [ALGORITHM, *settings, *regime]


def _runset(group: WandbGroup, staleness: int, keys: Sequence[str]) -> wr.Runset:
    filters = expr.And(expr.Metric("Group") == group.name, expr.Tags().isin([staleness_tag(staleness)]))
    return wr.Runset(name=group.name, filters=filters, groupby=[f"config.{key}" for key in keys])


def _group_keys(run: Run, keys: Sequence[str]) -> tuple[wr.RunsetGroupKey, ...]:
    values = dict(leaves(run.config))
    return tuple(wr.RunsetGroupKey(wr.Config(key), value_text(values.get(key))) for key in keys)


def _panels(metrics: Sequence[Metric]) -> list[Any]:
    panels = []
    for number, metric in enumerate(metrics):
        row, column = divmod(number, _COLUMNS)
        shown = {"metric_regex": HELD_OUT_NAMES} if metric.name == HELD_OUT else {"y": [metric.logged]}
        title = metric.title if metric.name == HELD_OUT else metric_of(metric.logged).title
        panels.append(
            wr.LinePlot(
                title=f"{title} [{metric.unit}]" if metric.unit and not metric.source else title,
                x=STEP,
                title_x="update",
                log_y=metric.log,
                groupby_aggfunc="mean",
                groupby_rangefunc="minmax",
                layout=wr.Layout(_WIDTH * column, _HEIGHT * row, _WIDTH, _HEIGHT),
                **shown,
            )
        )
    return panels
