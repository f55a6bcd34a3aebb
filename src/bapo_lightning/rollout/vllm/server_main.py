"""vLLM's own HTTP server, which ends with the process that started it and knows the name of the adapter that
the trainer sends to its workers: `python -m bapo_lightning.rollout.vllm.server_main --model ... --port ...`.
"""

from __future__ import annotations

import os
import signal
import time

from bapo_lightning.system.orphans import end_process, in_background, wake_with_parent

END_SECONDS = 10.0  # a healthy vLLM ends within half a second


def end_when_stdin_closes() -> None:
    """Ends this process with its parent, which holds the other end of standard input and writes nothing. A
    server that hangs during its start ignores SIGTERM, so its whole process group is killed afterwards.
    """
    os.read(0, 1)  # not through sys.stdin, whose lock must be free when Python ends
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(END_SECONDS)
    if os.getpgrp() == os.getpid():  # not a shell's group
        os.killpg(os.getpgrp(), signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)


def name_the_adapter() -> None:
    """Lets requests use the only adapter, under its name. Workers already hold it, so they read nothing."""
    from vllm.lora.request import LoRARequest
    from vllm.lora.resolver import LoRAResolver, LoRAResolverRegistry

    from bapo_lightning.rollout.vllm.options import ADAPTER, ADAPTER_NUMBER

    class HandedOver(LoRAResolver):
        async def resolve_lora(self, base_model_name: str, lora_name: str) -> LoRARequest | None:
            return LoRARequest(ADAPTER, ADAPTER_NUMBER, ADAPTER) if lora_name == ADAPTER else None

    LoRAResolverRegistry.register_resolver(ADAPTER, HandedOver())


if __name__ == "__main__":
    wake_with_parent()
    in_background("end-with-parent", end_when_stdin_closes, end_process)
    name_the_adapter()
    from vllm.entrypoints.launchers.api_server.entry import main

    main()
