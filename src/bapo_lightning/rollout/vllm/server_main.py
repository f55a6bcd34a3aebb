"""The process of a vLLM server that we start: `python -m bapo_lightning.rollout.vllm.server_main --model ...
--port ...`.

vLLM's own HTTP server, with two differences. It ends when the process that started it ends, however that
happens: an orphaned server would keep its memory and its GPUs for ever. And it knows the name of the adapter
that the trainer hands to its workers, and which is on no disk.
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


def name_the_adapter() -> None:
    """Lets requests use the only adapter, under its name. Workers hold it by its number already, so they read
    nothing.
    """
    from vllm.lora.request import LoRARequest
    from vllm.lora.resolver import LoRAResolver, LoRAResolverRegistry

    from bapo_lightning.rollout.vllm.options import ADAPTER, ADAPTER_NUMBER

    class HandedOver(LoRAResolver):
        async def resolve_lora(self, base_model_name: str, lora_name: str) -> LoRARequest | None:
            return LoRARequest(ADAPTER, ADAPTER_NUMBER, ADAPTER) if lora_name == ADAPTER else None

    LoRAResolverRegistry.register_resolver(ADAPTER, HandedOver())


if __name__ == "__main__":
    threading.Thread(target=end_when_stdin_closes, daemon=True).start()
    name_the_adapter()
    from vllm.entrypoints.launchers.api_server.entry import main

    main()
