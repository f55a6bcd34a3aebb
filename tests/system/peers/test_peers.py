"""A peer gives an answer that was judged, or one sentence, in time; a secret reaches no other peer."""

import asyncio
import json
import os
import resource
import subprocess
import sys
import time
from contextlib import aclosing, suppress
from typing import Annotated

import pytest
from annotated_types import Lt
from tests.system.peers import hostile
from tests.system.peers.hostile import Hostile, serving, whole

from bapo_lightning.system.peers import PeerFault, PeerRefusal, PeerTooLate
from bapo_lightning.system.peers.answers import Answer, Json, LogProb, Many, TokenId, judged
from bapo_lightning.system.peers.conversation import Conversation
from bapo_lightning.system.peers.wire import Wire, ask, fetch, most_connections

SECONDS = 0.5  # of an answer; what never ends is told after it
LIMIT = 60  # in which a test must end on a slow machine


class Text(Answer):
    """What the server says when it is well."""

    text: str


class Numbers(Answer):
    """One field of each kind."""

    tokens: Many[TokenId] = ()
    optional: Many[TokenId] | None = None
    logprobs: Many[LogProb] = ()
    number: float | None = None
    count: int | None = None
    is_done: bool = False
    free: Json = None


@pytest.fixture(scope="module")
def server():
    with serving(Hostile(lambda path, body: whole(json.dumps({"text": path, "body": body})))) as made:
        yield made


def sentence(server, work):
    """The fault that `work` ends with: one line that names the peer, in time."""
    start = time.monotonic()
    with pytest.raises(PeerFault) as raised:
        work()
    text = str(raised.value)
    assert time.monotonic() - start < LIMIT and len(text) < 800
    assert server.url.split("//")[1] in text and text.splitlines() == [text]
    return raised.value


def test_a_good_answer_is_given_as_what_it_is(server):
    assert ask(Text, f"{server.url}/good", SECONDS * 20).text == "/good"
    assert json.loads(fetch(f"{server.url}/good", SECONDS * 20, {"a": 1}))["body"] == {"a": 1}


@pytest.mark.parametrize("mode", hostile.MODES)
@pytest.mark.parametrize("body", [None, {"a": 1}], ids=["get", "post"])
def test_each_hostile_answer_is_one_sentence_and_no_secret_leaves(mode, body, server):
    server.heads.clear()
    url = f"{server.url}/{mode}"
    fault = sentence(server, lambda: ask(Text, url, SECONDS, body, "SECRET", most_bytes=1 << 20))
    assert isinstance(fault, PeerRefusal) == (mode in (
        "deep_error", "escapes_in_error", "list_in_error", "odd_status", "login", "endless_error",
    ))  # fmt: skip
    assert {head.split(" ")[1] for head in server.heads} == {f"/{mode}"}
    assert all("Authorization: Bearer SECRET" in head for head in server.heads)


@pytest.mark.parametrize("mode", hostile.MODES)
def test_each_hostile_stream_of_lines_ends(mode, server):
    async def read():
        async with (
            Wire() as wire,
            asyncio.timeout(SECONDS),
            aclosing(wire.lines(f"{server.url}/{mode}", {}, 1 << 20, SECONDS)) as lines,
        ):
            return [line async for line in lines]

    start = time.monotonic()
    with suppress(PeerFault, TimeoutError):
        assert asyncio.run(read()) == []  # no whole line is in any of them
    assert time.monotonic() - start < LIMIT


def test_a_peer_that_cannot_be_reached_is_named():
    with pytest.raises(PeerFault, match=r"http://127\.0\.0\.1:9/x does not answer: Connection refused"):
        fetch("http://127.0.0.1:9/x", SECONDS * 20)


def test_nothing_of_the_environment_changes_where_a_question_goes(server, monkeypatch, tmp_path):
    (tmp_path / ".netrc").write_text("machine 127.0.0.1 login me password SECRET\n")
    monkeypatch.setenv("NETRC", str(tmp_path / ".netrc"))
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    server.heads.clear()
    assert fetch(f"{server.url}/good", SECONDS * 20)
    assert "uthorization" not in server.heads[0]


GOOD = [
    {"tokens": [0, 7, 2**31 - 1], "logprobs": [0, -0.5, -9999.0, 5e-7], "number": 3, "count": 4},
    {"optional": [1], "free": {"a": [1, None, "x", 0.5]}, "unknown": 1},
]
ODD = [
    '[1]', 'null', '{"tokens": null}', '{"tokens": 5}', '{"tokens": "12"}', '{"tokens": [-1]}',
    '{"tokens": [2147483648]}', '{"tokens": [1e30]}', '{"tokens": [1.0]}', '{"tokens": [true]}',
    '{"tokens": ["1"]}', '{"tokens": [[1]]}', '{"tokens": [null]}', f'{{"tokens": [{"9" * 5000}]}}',
    '{"logprobs": [NaN]}', '{"logprobs": [Infinity]}', '{"logprobs": [-Infinity]}', '{"logprobs": [1e-5]}',
    '{"logprobs": [2]}', '{"logprobs": [-1e300]}', '{"logprobs": ["-1"]}', '{"logprobs": [null]}',
    '{"logprobs": [true]}', '{"number": NaN}', '{"number": 1e999}', '{"number": "5"}', '{"number": true}',
    f'{{"number": {"9" * 400}}}', '{"count": 4.0}', '{"is_done": "false"}', '{"is_done": 1}',
    '{"free": {"a": [NaN]}}', '{"free": 1e999}', '{"free": "\\ud800"}', f'{{"free": {"[" * 300}{"]" * 300}}}',
]  # fmt: skip


def test_nothing_is_converted_and_numbers_are_finite():
    for each in GOOD:
        judged(Numbers, json.dumps(each), "PEER")
    for each in ODD:
        with pytest.raises(PeerFault, match=r"^PEER sent an answer that cannot be used: "):
            judged(Numbers, each, "PEER")


def test_a_long_list_of_wrong_things_is_one_error():
    class Small(Answer):
        tokens: Many[Annotated[int, Lt(1)]]

    with pytest.raises(PeerFault, match=r"tokens\.0: Input should be less than 1$"):
        judged(Small, json.dumps({"tokens": [5] * 100_000}), "PEER")


def talking(server, mode, most_bytes=1 << 14):
    return Conversation(f"{server.url}/{mode}", SECONDS * 20, most_bytes)


def test_each_question_has_its_answer(server):
    talk = talking(server, "well")
    assert [talk.ask(Text, {}, LIMIT).text for _ in range(5)] == ["1", "2", "3", "4", "5"]
    talk.close({"type": "close"})


@pytest.mark.parametrize("mode", [
    "bytes", "deep", "html", "bad_frame", "no_utf8", "mute", "long", "double", "banner", "gone", "pings",
    "chatter",
])  # fmt: skip
def test_each_hostile_conversation_ends_in_time_and_no_answer_is_taken_for_another(mode, server):
    talk, answers = talking(server, mode), []
    seconds = SECONDS if mode == "mute" else LIMIT  # on a slow machine
    time.sleep(0.1)  # a banner is there

    def work():
        for _ in range(5):
            answers.append(talk.ask(Text, {}, seconds).text)
            time.sleep(0.1)  # what comes unasked is there

    fault = sentence(server, work)
    assert isinstance(fault, PeerTooLate) == (mode == "mute")
    assert answers == (["1"] if mode in ("double", "pings", "chatter") else [])
    start = time.monotonic()
    talk.close({"type": "close"})
    assert time.monotonic() - start < LIMIT / 4


def test_a_conversation_follows_no_redirect(server):
    server.heads.clear()
    sentence(server, lambda: talking(server, "redirect"))
    assert len(server.heads) == 1


def test_connections_that_a_peer_does_not_read_from_are_cut(server):
    """100 MB are more than the buffers of the system take."""
    before = set(os.listdir("/proc/self/fd"))
    sentence(server, lambda: fetch(f"{server.url}/good", 0.0001, {"a": "x" * 100_000_000}))
    give_up = time.monotonic() + LIMIT
    while len(set(os.listdir("/proc/self/fd")) - before) > 1 and time.monotonic() < give_up:
        time.sleep(0.05)
    assert time.monotonic() < give_up


def test_connections_leave_half_of_the_open_files_to_others():
    code = "import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (50, 90))\n"
    code += "from bapo_lightning.system.peers.wire import most_connections\n"
    code += "print(most_connections(), *resource.getrlimit(resource.RLIMIT_NOFILE))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.split() == ["45", "90", "90"], done.stderr
    assert 2 * most_connections() <= resource.getrlimit(resource.RLIMIT_NOFILE)[0]
