"""`python -m bapo_lightning.cli.figures [figure=2,9] [seed=1,2] [overrides]`: the paper's figures in small,
and what they show.

    conf/figures.yaml, conf/figure/*.yaml -> runs that are missing are trained -> figure_<name>.png,
    figures.md, figures.json

All lie in outputs/figures, which may be compared (`make compare RUNS=outputs/figures`) and carried on at any
time: finished runs are kept.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from bapo_lightning.cli.sweep import run_plan, tell_failures
from bapo_lightning.errors import ConfigError
from bapo_lightning.report.figures.draw import draw_figures
from bapo_lightning.report.figures.findings import print_findings
from bapo_lightning.runs.sweeps.figures import read_figures_plan


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit code: 0, 1 when a run failed, 2 when nothing was started because it
    cannot work.
    """
    try:
        plan = read_figures_plan(sys.argv[1:] if arguments is None else arguments)
        codes = run_plan(plan.runs)
    except ConfigError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    findings = draw_figures(plan.figures, plan.runs.folder, plan.variant_of_run, plan.arguments)
    print_findings(findings)
    return tell_failures(plan.runs, codes)


if __name__ == "__main__":
    sys.exit(main())
