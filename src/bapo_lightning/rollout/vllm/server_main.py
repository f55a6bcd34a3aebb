"""vLLM's own HTTP server, which ends with the process that started it, and knows the name of the adapter that
the trainer hands to its workers: `python -m bapo_lightning.rollout.vllm.server_main --model ... --port ...`.
"""

from __future__ import annotations

import os
import signal
import threading

from bapo_lightning.orphans import wake_with_parent


def end_when_stdin_closes() -> None:
    """Ends this process with its parent, which holds the other end of standard input and writes nothing."""
    os.read(0, 1)  # not through sys.stdin, whose lock must be free when Python ends
    os.kill(os.getpid(), signal.SIGTERM)


def name_the_adapter() -> None:
    """Lets requests use the only adapter, under its name. Workers hold it already, so they read nothing."""
    from vllm.lora.request import LoRARequest
    from vllm.lora.resolver import LoRAResolver, LoRAResolverRegistry

    from bapo_lightning.rollout.vllm.options import ADAPTER, ADAPTER_NUMBER

    class HandedOver(LoRAResolver):
        async def resolve_lora(self, base_model_name: str, lora_name: str) -> LoRARequest | None:
            return LoRARequest(ADAPTER, ADAPTER_NUMBER, ADAPTER) if lora_name == ADAPTER else None

    LoRAResolverRegistry.register_resolver(ADAPTER, HandedOver())


if __name__ == "__main__":
    wake_with_parent()
    threading.Thread(target=end_when_stdin_closes, daemon=True).start()
    name_the_adapter()
    from vllm.entrypoints.launchers.api_server.entry import main

    main()
