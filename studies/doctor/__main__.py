"""Makes sick runs and their twins, and judges the doctor by them: `python -m studies.doctor`.

studies/conf/doctor.yaml -> runs that are not kept yet -> studies/kept/doctor.jsonl -> docs/results/doctor.md
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from bapo_lightning.report.markdown import markdown_table
from bapo_lightning.runs.command import command
from bapo_lightning.system.run_folder.text_file import write_text
from studies.commands import with_parts
from studies.doctor.corpus import make_corpus, read_corpus
from studies.doctor.verdict import fits, judge, kept_elsewhere, read_others, summary, table
from studies.map.kept import KeptRuns

COMMAND = "python -m studies.doctor"


@command(2)
def main(arguments: Sequence[str] | None = None) -> None:
    """Trains what is missing, and prints what the doctor finds."""
    parser = argparse.ArgumentParser(prog=COMMAND, description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--kept", type=Path, default=Path("studies/kept/doctor.jsonl"), help="file of curves")
    parser.add_argument("--output", type=Path, default=Path("outputs/doctor"), help="folder of the runs")
    parser.add_argument("--page", type=Path, help="page whose parts are written again")
    parsed = parser.parse_args(arguments)
    config, kept = read_corpus(), KeptRuns(parsed.kept)
    make_corpus(config, kept, parsed.output)
    results, others = judge(config, kept), read_others(parsed.kept.with_name("doctor_others.json"))
    (head, *rows), (fitted, *fits_of_runs) = table(config, results, others), fits(config, kept)
    said = [*summary(config, results, others), *kept_elsewhere(parsed.kept)]
    parts = {
        "table": markdown_table(head, rows),
        "summary": "\n".join(f"- {text}" for text in said),
        "fits": markdown_table(fitted, fits_of_runs),
    }
    print("\n\n".join(parts.values()))
    if parsed.page is not None:
        write_text(parsed.page, with_parts(parsed.page.read_text(), COMMAND, parts))


if __name__ == "__main__":
    sys.exit(main())
