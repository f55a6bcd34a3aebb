"""The picture of one run in a page: `python -m studies.figures.one_run FILE.csv [RUN]` draws FILE.png.

With a run folder the file is written from it: what its plots show, thinned.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from bapo_lightning.configuration.compose import compose_run
from bapo_lightning.report import style
from bapo_lightning.report.metrics import PANELS, metric_of
from bapo_lightning.report.run.charts import panel_charts
from bapo_lightning.report.run.plots import draw_chart
from bapo_lightning.report.run.recorded import find_recorded
from bapo_lightning.runs.command import command
from bapo_lightning.system.run_folder.record import RunRecord, read_run
from studies.figures.kept import read_kept, thinned, write_kept

_POINTS = 96  # of a curve


@command(2)
def main(arguments: Sequence[str] | None = None) -> int:
    """Returns the exit code. Raises DataError: a file or folder is not what it should be."""
    path, *run = map(Path, sys.argv[1:] if arguments is None else arguments)
    if run:
        _keep(read_run(run[0]), path)
    print(draw(path))
    return 0


def _keep(record: RunRecord, path: Path) -> None:
    def is_plotted(name: str) -> bool:
        group = metric_of(name).group
        return (group in PANELS and PANELS[group].plotted) or (name.startswith("val/") and "/avg@" in name)

    manifest = record.manifest
    curves = {
        name: thinned(name, curve, _POINTS) for name, curve in record.columns.items() if is_plotted(name)
    }
    curves["=staleness"] = [], [manifest["staleness"]]
    kept = {(manifest["experiment"], manifest["seed"]): curves}
    write_kept(path, kept, f"make train EXP={manifest['experiment']}", [manifest.get("git_commit")])


def draw(path: Path) -> Path:
    """Draws the overview of a run from its kept curves into a PNG next to them."""
    (((experiment, seed), curves),) = read_kept(path).items()
    config = compose_run([f"experiment={experiment}"])
    (_, (staleness,)) = curves.pop("=staleness")
    manifest = {"algorithm": config["job_type"], "staleness": int(staleness)}
    record = RunRecord(path, config, manifest, [])
    vars(record)["columns"] = curves
    charts = [chart for chart in panel_charts(record) if chart.panel.plotted]
    canvas = style.new_figure(14.0, 7.4)
    canvas.suptitle(f"{experiment}  |  {config['job_type']}  |  staleness {staleness:g}  |  seed {seed}")
    for axes, chart in zip(canvas.subplots(2, 3).flat, charts, strict=True):
        draw_chart(axes, chart, find_recorded(config))
    return style.save_png(canvas, path.with_suffix(".png"))


if __name__ == "__main__":
    sys.exit(main())
