"""The Hugging Face hub, where it cannot be reached."""

from __future__ import annotations

import os
import sys
from functools import cache
from threading import Thread

HUB_SECONDS = 5  # for an answer, its name looked up and the connection made


@cache
def stay_offline_without_hub() -> str | None:
    """Lets libraries use only what was fetched before where the hub does not answer: they would try six times
    per file. Asks once; returns why nothing can be fetched, the end of a sentence, or None.
    """
    from huggingface_hub import constants

    if constants.HF_HUB_OFFLINE:
        return "is not asked (HF_HUB_OFFLINE=1)"
    if _answers(constants.ENDPOINT):
        return None
    os.environ["HF_HUB_OFFLINE"] = "1"  # of what is imported or started later
    constants.HF_HUB_OFFLINE = True
    if datasets := sys.modules.get("datasets"):
        datasets.config.HF_HUB_OFFLINE = True
    return "cannot be reached"


def _answers(address: str) -> bool:
    from huggingface_hub import get_session

    answered = []

    def ask() -> None:
        try:
            answered.append(get_session().head(address, timeout=HUB_SECONDS).status_code)
        except Exception:  # of the name, the connection, the proxy: each layer has types of its own
            return

    # Looking a name up knows no limit of time, and cannot be interrupted.
    thread = Thread(target=ask, daemon=True)
    thread.start()
    thread.join(HUB_SECONDS)
    return any(code < 500 for code in answered)  # what a proxy says of a hub that it cannot reach is above
