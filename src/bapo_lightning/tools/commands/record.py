"""Records curves to ship: `python -m bapo_lightning record FOLDER [FOLDER...] --output FILE.json`.

The folders are finished runs of one setting that differ only in their seeds. A run under the same protocol
then shows these curves in its summary and plots.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from bapo_lightning.report.run.recorded import record, write_recorded
from bapo_lightning.runs.command import command, end_with, parser_of
from bapo_lightning.system.run_folder.find import find_runs


@command(2)
def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the command; its exit code is 2 if the runs cannot be averaged."""
    parser = parser_of("record", __doc__)
    parser.add_argument("folders", nargs="+", metavar="FOLDER", help="run folder, glob, or folder of runs")
    parser.add_argument("--output", type=Path, required=True, help="file to write")
    parsed = parser.parse_args(arguments)
    recorded = record(find_runs(parsed.folders))
    print(f"{recorded.label}, commit {recorded.commit}: {write_recorded(recorded, parsed.output)}")


if __name__ == "__main__":
    end_with(main)
