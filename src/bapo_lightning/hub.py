"""The Hugging Face hub, where it cannot be reached."""

from __future__ import annotations

import os
import socket
import sys
from urllib.parse import urlsplit
from urllib.request import getproxies


def stay_offline_without_hub() -> None:
    """Lets the libraries use only what was fetched before where the hub's name does not resolve: for every
    file they would try six times, in half a minute, and print every try.
    """
    from huggingface_hub import constants

    if constants.HF_HUB_OFFLINE or getproxies():  # behind a proxy, names need not resolve
        return
    try:
        socket.getaddrinfo(urlsplit(constants.ENDPOINT).hostname, None)
    except OSError:
        os.environ["HF_HUB_OFFLINE"] = "1"  # of what is imported or started later
        constants.HF_HUB_OFFLINE = True
        if datasets := sys.modules.get("datasets"):
            datasets.config.HF_HUB_OFFLINE = True
