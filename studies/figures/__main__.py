"""The paper's figures in small: `python -m studies.figures [figure=2,9] [seed=1,2] [overrides]`.

    studies/conf/figures -> runs that are missing are trained -> curves.csv
    curves.csv (also one that is named by curves=FILE) -> figure_<name>.png, figures.md, figures.json

All lie in outputs/figures, which may be compared (`make compare RUNS=outputs/figures`) and carried on at any
time: finished runs are kept.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from bapo_lightning.configuration.help import listed, usage
from bapo_lightning.report.progress.display import displayed_phases
from bapo_lightning.runs.command import command
from bapo_lightning.tools.commands.multirun import in_hydra
from bapo_lightning.tools.sweeps.run import print_failures, run_plan
from studies.figures.catalogue import figure_names, read_figure, read_protocol
from studies.figures.draw import draw_figures
from studies.figures.findings import print_findings
from studies.figures.plan import read_figures_plan


def help_text() -> str:
    protocol = read_protocol()
    titles = {name: read_figure(name, protocol).title for name in figure_names()}
    shown = usage(
        "[figure=2,9] [seed=1,2] [KEY=VALUE ...]",
        "figures FIG=2,9",
        "Trains the runs of the paper's figures in small, draws them, and judges the claims. Figures:",
        module="studies.figures",
    )
    return "\n".join([shown, *listed(titles)])


@command(2, usage=help_text)
def main(arguments: Sequence[str] | None = None) -> int:
    plan = read_figures_plan([*map(in_hydra, sys.argv[1:] if arguments is None else arguments)])
    codes = {} if plan.curves else run_plan(plan.runs, *plan.launcher)
    with displayed_phases():
        findings = draw_figures(
            plan.figures, plan.runs.folder, plan.variant_of_run, plan.arguments, plan.curves
        )
    print_findings(findings)
    return print_failures(plan.runs, codes)


if __name__ == "__main__":
    sys.exit(main())
