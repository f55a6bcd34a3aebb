"""Where the hub does not answer, nothing waits for it."""

import os
import socket
import time
from contextlib import closing

import pytest
from huggingface_hub import constants, get_session

from bapo_lightning.system import hub


@pytest.fixture
def ask(monkeypatch):
    """Asks a hub at an address as a process does for the first time; returns why it stays offline."""

    def ask(address):
        monkeypatch.setattr(constants, "ENDPOINT", address)
        hub.stay_offline_without_hub.cache_clear()
        reason = hub.stay_offline_without_hub()
        assert (reason is not None) == constants.HF_HUB_OFFLINE
        assert os.environ["HF_HUB_OFFLINE"] == ("0" if reason is None else "1")
        return reason

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setenv("HF_HUB_OFFLINE", "0")
    yield ask
    hub.stay_offline_without_hub.cache_clear()


@pytest.fixture
def silent():
    """Address of a server that takes connections and never answers."""
    with closing(socket.create_server(("127.0.0.1", 0))) as server:
        yield f"http://127.0.0.1:{server.getsockname()[1]}"


@pytest.mark.parametrize(
    ("status", "reason"), [(200, None), (307, None), (404, None), (502, "cannot be reached")]
)
def test_only_what_was_fetched_is_used_unless_the_hub_answers(status, reason, ask, monkeypatch):
    asked = []

    def head(address, timeout):
        asked.append(address)
        return type("Answer", (), {"status_code": status})

    monkeypatch.setattr(get_session(), "head", head)
    assert ask("https://hub.example") == reason
    assert hub.stay_offline_without_hub() == reason and asked == ["https://hub.example"]


@pytest.mark.parametrize("seconds", [2, 1], ids=["what it is sent is swallowed", "a look-up has no limit"])
def test_a_silent_hub_is_given_up(seconds, ask, silent, monkeypatch):
    monkeypatch.setattr(hub, "HUB_SECONDS", 0.2)
    if seconds == 1:
        monkeypatch.setattr(get_session(), "head", lambda *_, timeout: time.sleep(10 * timeout))
    start = time.monotonic()
    assert ask(silent) == "cannot be reached"
    assert time.monotonic() - start < seconds


def test_a_hub_that_nothing_listens_for_is_reported_at_once(ask):
    with socket.create_server(("127.0.0.1", 0)) as server:
        closed = f"http://127.0.0.1:{server.getsockname()[1]}"
    start = time.monotonic()
    assert ask(closed) == "cannot be reached"
    assert time.monotonic() - start < 2


def test_nothing_is_asked_where_the_variable_forbids_it(monkeypatch):
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(hub, "_answers", lambda address: pytest.fail("asked"))
    hub.stay_offline_without_hub.cache_clear()
    assert hub.stay_offline_without_hub() == "is not asked (HF_HUB_OFFLINE=1)"
