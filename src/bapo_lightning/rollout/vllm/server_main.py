"""The process of a vLLM server that we start: `python -m bapo_lightning.rollout.vllm.server_main --model ...
--port ...`.

vLLM's own HTTP server, with one difference: it ends when whoever started it ends, however that happens. A
server that nobody uses any more would keep its memory, and its GPUs, for ever.
"""

from __future__ import annotations

import os
import signal
import threading


def end_with_parent() -> None:
    """Standard input is a pipe whose other end the parent holds and never writes to: it closes when the
    parent is gone, also by SIGKILL.
    """
    os.read(0, 1)  # not through sys.stdin, whose lock must be free when Python ends
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    threading.Thread(target=end_with_parent, daemon=True).start()
    from vllm.entrypoints.launchers.api_server.entry import main

    main()
