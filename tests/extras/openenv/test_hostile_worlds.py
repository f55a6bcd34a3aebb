"""A server that breaks the protocol costs a conversation, or the making of problems; in time, in one
sentence, and without a value that was not judged.
"""

import time
from contextlib import suppress

import pytest
from tests.extras.openenv import hostile
from tests.extras.openenv.hostile import AFTERWARDS, AT_CLOSE, BEGIN, HARMLESS, MODES, HostileWorld
from tests.system.peers.hostile import serving

from bapo_lightning.environments.environment import Turn
from bapo_lightning.extras.openenv.actions import TextAction
from bapo_lightning.extras.openenv.observations import digest
from bapo_lightning.extras.openenv.problems import openenv_problems
from bapo_lightning.extras.openenv.server import WorldServer
from bapo_lightning.extras.openenv.session import Seen
from bapo_lightning.extras.openenv.world import OpenEnv
from bapo_lightning.system.errors import DataError
from bapo_lightning.types import Problem

# Limits on a missing answer, on an answer that comes, and on a test, on a slow machine.
SECONDS, PATIENT, LIMIT = 1.0, 20.0, 60
OPENING = digest(Seen(observation={"text": BEGIN}))
PROBLEM = Problem("x", BEGIN, "", metadata={"reset": {"seed": 0}, "opening": OPENING})


@pytest.fixture(scope="module")
def world():
    with serving(HostileWorld()) as made:
        yield made


def server(world, mode, seconds=PATIENT):
    return WorldServer(url=f"{world.url}/{mode}", seconds=seconds)


def replies(world, mode, turns=3, seconds=SECONDS):
    """What a conversation is told, until it is lost or done."""
    begun = time.monotonic()
    environment = OpenEnv(server(world, mode), TextAction(), seconds=seconds)
    told, state = [], environment.start(PROBLEM)
    for number in range(turns):
        told.append(environment.respond(Turn(PROBLEM, f"turn {number}", number, False, state)))
        state = told[-1].state
        if told[-1].is_lost or told[-1].is_done:
            break
        time.sleep(0.2)  # as long as a turn takes; what a server says meanwhile is found
    environment.close()
    assert time.monotonic() - begun < LIMIT and environment._open == 0
    return told


@pytest.mark.parametrize("mode", [mode for mode in MODES if mode not in (*AFTERWARDS, *AT_CLOSE, "banner")])
def test_a_conversation_whose_world_breaks_the_protocol_is_cut(world, mode):
    (lost,) = replies(world, f"step-{mode}")
    assert lost.is_lost and lost.score is None and "STALE" not in lost.text
    assert lost.text.startswith(("The session was lost 3 times", "The world gave no answer"))
    assert len(lost.text.splitlines()) == 1 and len(lost.text) < 800


@pytest.mark.parametrize("mode", [*hostile.SAID, *hostile.REFUSED])
def test_a_conversation_whose_world_cannot_begin_again_is_cut(world, mode):
    (lost,) = replies(world, f"reset-{mode}")
    assert lost.is_lost and lost.score is None and len(lost.text) < 800


@pytest.mark.parametrize("mode", AFTERWARDS)
def test_no_answer_is_taken_for_the_answer_to_another_question(world, mode, monkeypatch):
    monkeypatch.setattr("bapo_lightning.extras.openenv.session.QUIET_SECONDS", 1.0)  # on a slow machine
    first, last = replies(world, f"step-{mode}")
    assert first.score == 0.5 and "STALE" not in first.text  # the second turn begins in a session of its own
    assert last.is_lost and "spoke without being asked" in last.text


@pytest.mark.parametrize("mode", [*AT_CLOSE, "none"])
def test_a_server_that_behaves_up_to_the_end_is_understood_and_holds_nobody(world, mode):
    *_, last = replies(world, f"step-{mode}")
    assert last.is_done and last.score == 1.5


@pytest.mark.parametrize("mode", HARMLESS)
def test_odd_answers_that_are_right_are_taken(world, mode):
    *_, last = replies(world, f"step-{mode}", turns=2, seconds=PATIENT)
    assert not last.is_lost and last.score == {"reward_integer": 2.0, "reward_null": None}.get(mode, 1.0)


@pytest.mark.parametrize("mode", [mode for mode in MODES if mode not in AT_CLOSE])
def test_problems_of_a_world_that_breaks_the_protocol_are_not_made(world, mode, monkeypatch):
    monkeypatch.setattr("bapo_lightning.extras.openenv.session.QUIET_SECONDS", 1.0)  # on a slow machine
    begun = time.monotonic()
    with pytest.raises(DataError, match="the OpenEnv world w cannot start with") as raised:
        openenv_problems(server(world, f"reset-{mode}"), "w", 2, "train", seconds=SECONDS)
    assert time.monotonic() - begun < LIMIT
    assert len(str(raised.value).splitlines()) == 1 and len(str(raised.value)) < 800


@pytest.mark.parametrize("mode", AFTERWARDS)
def test_a_second_answer_that_nobody_waited_for_is_in_no_problem(world, mode, monkeypatch):
    monkeypatch.setattr("bapo_lightning.extras.openenv.session.QUIET_SECONDS", 0.0)
    with suppress(DataError):
        made = openenv_problems(server(world, f"reset-{mode}"), "w", 2, "train", seconds=SECONDS)
        assert made == openenv_problems(server(world, "step-none"), "w", 2, "train", seconds=SECONDS)


@pytest.mark.parametrize("mode", hostile.AT_OPENING)
def test_a_server_that_takes_no_connection_is_reported_with_the_reason(world, mode):
    world.heads.clear()
    begun = time.monotonic()
    with pytest.raises(DataError, match="no OpenEnv server takes a connection"):
        openenv_problems(server(world, mode, SECONDS), "w", 2, "train", seconds=SECONDS)
    assert time.monotonic() - begun < LIMIT and not any("canary" in head for head in world.heads)


def test_one_answer_in_five_that_is_doubled_costs_sessions_and_no_number(world):
    told = [replies(world, "some-double") for _ in range(12)]
    for conversation in told:
        *before, last = conversation
        assert last.is_lost or (last.is_done and last.score == 1.5)
        assert all((reply.text, reply.score) == ("a", 0.5 * number) for number, reply in enumerate(before, 1))
    assert any(conversation[-1].is_done for conversation in told)


def test_connections_stay_below_the_limit_of_files_and_old_ones_are_closed_first(world, monkeypatch):
    monkeypatch.setattr("bapo_lightning.extras.openenv.world.most_connections", lambda: 8)
    environment = OpenEnv(server(world, "step-none"), TextAction(), seconds=30.0)
    opened, most = environment._server.open, []
    monkeypatch.setattr(environment._server, "open", lambda s: most.append(environment._open) or opened(s))
    begun = [environment.respond(Turn(PROBLEM, "a", 0, False, None)) for _ in range(12)]
    ended = [environment.respond(Turn(PROBLEM, "b", 1, False, reply.state)) for reply in begun]
    assert max(most) == environment._open == 4 and [reply.score for reply in ended] == [1.0] * 12
    environment.close()
    assert environment._open == 0


def test_sessions_that_cannot_be_made_again_must_fit_the_limit_of_files(monkeypatch):
    monkeypatch.setattr("bapo_lightning.extras.openenv.world.most_connections", lambda: 512)
    options = [{"sessions": 1024, "after_loss": way} for way in ("cut", "replay")]
    cut, replay = (list(OpenEnv.machine_problems(each)) for each in options)
    assert replay == [] and "write sessions=256, or raise the limit with `ulimit -Hn 4096`" in cut[0]


def test_a_greeting_is_reported_as_what_it_is(world):
    with pytest.raises(DataError, match="spoke without being asked"):
        openenv_problems(server(world, "reset-banner"), "w", 2, "train", seconds=SECONDS)
