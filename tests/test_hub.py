"""Where the hub's name does not resolve, nothing waits for it."""

import os

import pytest
from huggingface_hub import constants

from bapo_lightning import hub


@pytest.mark.parametrize(
    ("resolves", "proxies"), [(False, {}), (True, {}), (False, {"https": "http://proxy"})]
)
def test_only_what_was_fetched_is_used_where_the_hub_cannot_be_reached(resolves, proxies, monkeypatch):
    def look_up(host, port):
        assert host == "huggingface.co"
        if not resolves:
            raise OSError("Name or service not known")

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "ENDPOINT", "https://huggingface.co")
    monkeypatch.setenv("HF_HUB_OFFLINE", "0")
    monkeypatch.setattr(hub, "getproxies", lambda: proxies)
    monkeypatch.setattr(hub.socket, "getaddrinfo", look_up)
    hub.stay_offline_without_hub()
    is_offline = not resolves and not proxies
    assert (constants.HF_HUB_OFFLINE, os.environ["HF_HUB_OFFLINE"]) == (
        is_offline,
        "1" if is_offline else "0",
    )
