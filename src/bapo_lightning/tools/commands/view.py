"""A run as one page, `view.html` in its folder, that follows it: curves, bounds, time, texts."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from bapo_lightning.runs.command import command, end_with, number_type, parser_of
from bapo_lightning.system.errors import ConfigError
from bapo_lightning.system.orphans import in_background, print_failure
from bapo_lightning.system.run_folder.find import find_runs, newest_run
from bapo_lightning.system.values import Port, Seconds
from bapo_lightning.tools.view.page import View

HOST = "127.0.0.1"


@command(2)
def main(arguments: Sequence[str] | None = None) -> None:
    """Writes the page once, or repeatedly during the run, until Ctrl-C."""
    parser = parser_of("view", __doc__)
    parser.add_argument("run", metavar="RUN", help="run folder, or a folder or glob of runs: the newest")
    interval = number_type(Seconds, "seconds")
    parser.add_argument("--every", type=interval, default=5.0, metavar="SECONDS", help="default: 5")
    parser.add_argument("--once", action="store_true", help="write it once, even during the run")
    text = f"also answer at http://{HOST}:PORT, until Ctrl-C, for a browser on another machine"
    parser.add_argument("--serve", type=number_type(Port, "a port"), metavar="PORT", help=text)
    parsed = parser.parse_args(arguments)
    view = View(newest_run(find_runs([parsed.run])))
    path, is_alive = view.write(parsed.every)
    print("\n".join(addresses(path, parsed.serve)), flush=True)
    try:
        while (is_alive and not parsed.once) or parsed.serve:
            time.sleep(parsed.every)
            if is_alive and not parsed.once:
                _, is_alive = view.write(parsed.every)
    except KeyboardInterrupt:
        print("the same command follows the run again")


def addresses(path: Path, port: int | None) -> list[str]:
    """Serves the page at `port`, if any; returns where it is. Raises ConfigError if the port is taken."""
    if port is None:
        is_remote = "SSH_CONNECTION" in os.environ
        hint = ['from your own machine: add ARGS="--serve 8080" to this command'] if is_remote else []
        return [f"open {path.absolute().as_uri()}", *hint]
    try:
        server = ThreadingHTTPServer((HOST, port), partial(PageHandler, path))
    except OSError as error:
        raise ConfigError([f"--serve {port}: {error.strerror}; write another port"]) from None
    in_background("page", server.serve_forever, print_failure)
    here = f"http://{HOST}:{port}/"
    return [f"open {here}", f"from your own machine: ssh -L {port}:{HOST}:{port} THIS_MACHINE, then {here}"]


class PageHandler(BaseHTTPRequestHandler):
    """Answers with the page, and with no other file of the run."""

    def __init__(self, path: Path, *request: object) -> None:
        self._path = path
        super().__init__(*request)  # type: ignore[arg-type]

    def do_GET(self) -> None:
        """Answers. A foreign page whose host name resolves to this machine (DNS rebinding) gets nothing."""
        host = self.headers.get("Host", "").rpartition(":")[0]
        if self.path != "/" or host not in (HOST, "localhost"):
            self.send_error(404)
            return
        content = self._path.read_bytes()
        self.send_response(200)
        self.send_header("Content-Type", "text/html; charset=utf-8")
        self.send_header("Content-Length", str(len(content)))
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        """Prints no line per request."""


if __name__ == "__main__":
    end_with(main)
