"""Names on the Hugging Face hub, and what to do if it cannot be reached."""

from __future__ import annotations

import os
import sys
from functools import cache
from pathlib import Path

from bapo_lightning.system.orphans import in_background

HUB_SECONDS = 5  # for an answer, including name lookup and connection


def is_hub_name(path: str) -> bool:
    """Whether `path` has the form owner/name of the Hugging Face hub, and no folder here is called owner."""
    return path.count("/") == 1 and not path.startswith((".", "/", "~")) and not Path(path).parent.exists()


@cache
def stay_offline_without_hub() -> str | None:
    """Lets libraries use only files fetched earlier if the hub does not answer: they would try six times
    per file. Checks once; returns why nothing can be fetched, the end of a sentence, or None.
    """
    from huggingface_hub import constants

    if constants.HF_HUB_OFFLINE:
        return "is not asked (HF_HUB_OFFLINE=1)"
    if _answers(constants.ENDPOINT):
        return None
    os.environ["HF_HUB_OFFLINE"] = "1"  # for modules that are imported and processes that are started later
    constants.HF_HUB_OFFLINE = True
    if datasets := sys.modules.get("datasets"):
        datasets.config.HF_HUB_OFFLINE = True
    return "cannot be reached"


def _answers(address: str) -> bool:
    from huggingface_hub import get_session

    answered = []

    def ask() -> None:
        answered.append(get_session().head(address, timeout=HUB_SECONDS).status_code)

    # A name lookup has no time limit and cannot be interrupted. An error of the lookup, the
    # connection or the proxy means that the hub has not answered.
    in_background("hub", ask, lambda error: None).join(HUB_SECONDS)
    return any(code < 500 for code in answered)  # a proxy reports a hub that it cannot reach with 500 or more
