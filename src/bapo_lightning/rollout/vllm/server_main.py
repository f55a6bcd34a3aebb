"""The process of a vLLM server that we start: `python -m bapo_lightning.rollout.vllm.server_main --model ...
--port ...`.

vLLM's own HTTP server, with one difference: it ends when the process that started it ends, however that
happens. An orphaned server would keep its memory and its GPUs for ever.
"""

from __future__ import annotations

import os
import signal
import threading


def end_when_stdin_closes() -> None:
    """Ends this process with its parent, which holds the other end of standard input and never writes to it:
    the pipe closes even when the parent is ended by SIGKILL.
    """
    os.read(0, 1)  # not through sys.stdin, whose lock must be free when Python ends
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    threading.Thread(target=end_when_stdin_closes, daemon=True).start()
    from vllm.entrypoints.launchers.api_server.entry import main

    main()
