"""A run as one page, `view.html` in its folder, that follows it: curves, bounds, time, texts."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence

from bapo_lightning.cli.command import command, number_type, parser_of
from bapo_lightning.report.view.page import write_view
from bapo_lightning.run_folder.find import find_runs
from bapo_lightning.values import Seconds


@command(2)
def main(arguments: Sequence[str] | None = None) -> None:
    """Writes the page once, or again and again while the run goes on, until Ctrl-C."""
    parser = parser_of("view", __doc__)
    parser.add_argument("run", metavar="RUN", help="run folder, or a folder or glob of runs: the newest")
    every = number_type(Seconds, "seconds")
    parser.add_argument("--every", type=every, default=5.0, metavar="SECONDS", help="default: 5")
    parser.add_argument("--once", action="store_true", help="write it once, even of a run that goes on")
    parsed = parser.parse_args(arguments)
    runs = find_runs([parsed.run])
    folder = max(runs, key=lambda run: run.stat().st_mtime if run.exists() else 0.0)
    path, is_alive = write_view(folder, parsed.every)
    print(f"open {path.absolute().as_uri()}", flush=True)
    try:
        while is_alive and not parsed.once:
            time.sleep(parsed.every)
            _, is_alive = write_view(folder, parsed.every)
    except KeyboardInterrupt:
        print("the run goes on; the same command follows it again")


if __name__ == "__main__":
    sys.exit(main())
