"""Whatever a program does, it costs a conversation at most: in time, in one sentence, and with a reason."""

import asyncio
import os
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
from tests.commands import wait_until
from tests.extras.agent.toy import complete

from bapo_lightning.environments.environment import Turn
from bapo_lightning.extras.agent import program as programs
from bapo_lightning.extras.agent.endpoint import Endpoint
from bapo_lightning.extras.agent.problems import agent_problems
from bapo_lightning.extras.agent.program import Limits
from bapo_lightning.extras.agent.world import Agent
from bapo_lightning.system.errors import DataError, EnvironmentFault
from bapo_lightning.system.peers.loop import run
from bapo_lightning.types import Problem

TOY = str(Path(__file__).with_name("toy.py"))
PROBLEM, SECONDS = Problem("x", "12+3=", "15"), 20.0  # more than a start takes on a slow machine


@pytest.fixture
def agent():
    made = []

    def environment(*mode, programs=8, settings="ignore", **limits):
        own = Limits(**{"seconds": SECONDS, "requests": 50, **limits})
        made.append(Agent(Endpoint([sys.executable, TOY, *mode], settings=settings, limits=own), programs))
        return made[-1]

    yield environment
    for each in made:
        each.close()


def talk(environment, *texts, state=None, number=0, problem=PROBLEM):
    """The replies to the texts of a conversation, until it ends."""
    found = []
    for text in texts:
        found.append(environment.respond(Turn(problem, text, number + len(found), False, state)))
        state = found[-1].state
        if found[-1].is_done or found[-1].is_lost:
            break
    return found


@pytest.mark.parametrize(("mode", "reason", "sentence"), [
    ("quiet", "differed", "The program ended without a request."),
    ("other", "differed", "The program began differently from its problem."),
    ("hang", "late", "No request and no end came within 2 s."),
    ("endless", "late", "No request and no end came within 2 s."),
    ("crash", "crashed", "The program ended with code 1: as this"),
    ("killed", "crashed", "The program was killed 3 times: signal 9 ended it."),
    ("edit", "edited", "The program changed the conversation before its last answer."),
    ("flood", "flood", "The program made more than 50 requests."),
    ("talk", "flood", "The program wrote more than 2 MB."),
])  # fmt: skip
def test_a_program_that_misbehaves_loses_its_conversation(agent, mode, reason, sentence):
    environment = agent(mode, seconds=2.0 if reason == "late" else SECONDS, output_megabytes=2)
    (lost,) = talk(environment, "14")
    assert (lost.is_lost, lost.score, lost.text, lost.state["lost"]) == (True, None, sentence, reason)
    assert not environment._endpoint._programs and not environment._idle


def test_a_program_that_writes_bytes_ends_without_a_score_or_is_lost(agent):
    (ended,) = talk(agent("binary", "0"), "14")
    assert (ended.is_done, ended.score, ended.is_lost) == (True, None, False)
    (lost,) = talk(agent("binary", "3"), "14")
    assert lost.state["lost"] == "crashed" and lost.text.startswith("The program ended with code 3: ")


@pytest.mark.parametrize("edits", ["cut", "branch"])
def test_a_program_that_rewrites_its_history_at_every_call_ends(agent, edits):
    environment = agent("rewrite")
    environment._edits = edits
    replies = talk(environment, *map(str, range(30)))
    state, found = replies[-1].state, environment.metrics(replies)
    if edits == "cut":
        assert len(replies) == 1 and state["lost"] == "edited" and state["edits"] == 1
        assert found["agent/lost_edited"] == 1 and found["agent/branches_mean"] == 1
    else:
        assert [reply.after for reply in replies] == [-1] * 20 + [None]
        assert replies[-1].score == 0.5 and state["edits"] == 20 and found["agent/branches_mean"] == 21
    assert not environment._endpoint._programs


@pytest.mark.slow
def test_ten_thousand_calls_are_answered_and_counted(agent):
    environment = agent("many", seconds=300.0, requests=10_000)
    (ended,) = talk(environment, "14")
    assert (ended.score, ended.calls, ended.errors) == (0.5, 10_000, 0)
    assert environment.metrics([ended])["agent/requests_mean"] == 10_000


def test_a_request_that_cannot_be_compared_with_the_problem_is_lost(agent):
    problem = Problem(
        "x", "12+3=", "15", metadata={"messages": [{"role": "user", "content": "a"}], "tools": [1j]}
    )
    (lost,) = talk(agent(), "14", problem=problem)
    assert lost.state["lost"] == "differed" and lost.text.startswith("The requests cannot be compared")


def test_requests_that_cannot_be_answered_are_refused_and_counted(agent):
    (ended,) = talk(agent("bad"), "14")
    assert (ended.is_done, ended.score, ended.errors) == (True, 0.25, 16) and ended.calls == 18


def test_one_of_two_requests_at_a_time_is_refused(agent):
    program = agent("parallel")._endpoint.start(PROBLEM)
    assert program.next_request()
    wait_until(lambda: program.num_refused, program._process.process)
    program.answer("14")
    assert program.next_request() is None and program.take_counts()[1] == 1


def test_a_program_that_leaves_its_request_behind_has_ended(agent, tmp_path):
    program = agent("early", str(tmp_path / "leave"))._endpoint.start(PROBLEM)
    assert program.next_request()
    (tmp_path / "leave").touch()
    assert program._process.process.wait() == 0
    program.answer("14")
    assert program.next_request() is None and program.score(has_ended=True) is None


def test_a_key_is_known_before_its_program_starts(agent, monkeypatch, tmp_path):
    endpoint, known, start = agent()._endpoint, [], programs.Supervised

    def noted(command, variables, **options):
        known.append(variables["OPENAI_API_KEY"] in endpoint._programs)
        return start(command, variables, **options)

    monkeypatch.setattr(programs, "Supervised", noted)
    endpoint.end(endpoint.start(PROBLEM))
    endpoint._options["cwd"] = str(tmp_path / "none")
    with pytest.raises(EnvironmentFault, match="cannot start"):
        endpoint.start(PROBLEM)
    assert known == [True, True] and not endpoint._programs


def test_standard_input_is_empty_once_it_was_read(agent):
    (ended,) = talk(agent("again"), "14", problem=replace(PROBLEM, answer="5" * 200_000))
    assert ended.score == 0.0


def test_no_child_outlives_a_program(agent, tmp_path):
    environment = agent("child", str(tmp_path / "child"))
    (ended,) = talk(environment, "14")
    assert ended.score == 0.5 and not environment._endpoint._programs
    child = int((tmp_path / "child").read_text())
    deadline = time.monotonic() + SECONDS
    with suppress(psutil.NoSuchProcess):
        while psutil.Process(child).status() != psutil.STATUS_ZOMBIE:
            assert time.monotonic() < deadline
            time.sleep(0.01)


def test_nothing_outlives_the_environment_and_a_key_ends_with_its_conversation(agent, monkeypatch):
    environment = agent()
    (reply,) = talk(environment, "14")
    (program,) = environment._endpoint._programs.values()
    monkeypatch.setenv("OPENAI_BASE_URL", environment._endpoint._address())
    monkeypatch.setenv("OPENAI_API_KEY", program.key)
    assert "one request at a time" in complete("12+3=15")
    environment._idle.clear()
    environment._endpoint.end(program)
    assert "not OPENAI_API_KEY of a running conversation" in complete("12+3=")
    with pytest.raises(ProcessLookupError):
        os.kill(program._process.process.pid, 0)
    (ended,) = talk(environment, "15", state=reply.state, number=1)  # started again
    assert ended.is_done and ended.score == 0.75 and (ended.calls, ended.errors) == (0, 0)


def test_a_turn_during_a_close_starts_nothing(agent):
    environment = agent("endless", seconds=60.0)
    endpoint = environment._endpoint
    with ThreadPoolExecutor(1) as pool:
        turn = pool.submit(talk, environment, "14")
        while not turn.done() and not any(each.texts for each in list(endpoint._programs.values())):
            time.sleep(0.01)
        environment.close()
        with pytest.raises(EnvironmentFault, match="was closed during a turn"):
            turn.result()
    assert not endpoint._programs and endpoint._server is None and not environment._idle


def test_programs_that_ignore_their_end_are_closed_at_once(agent):
    endpoint = agent("stubborn")._endpoint
    made = [endpoint.start(PROBLEM) for _ in range(8)]
    assert all(program.next_request() for program in made)
    begun = time.monotonic()
    endpoint.close()
    assert time.monotonic() - begun < 6 and not endpoint._programs  # 8 one after another
    assert [program._process.process.returncode for program in made] == [-9] * 8


def test_output_is_read_up_to_its_limit_while_a_program_waits_and_closed_at_its_end(agent):
    endpoint = agent("chatty", output_megabytes=2)._endpoint
    program = endpoint.start(PROBLEM)
    assert program.next_request()
    wait_until(program._out.is_closed.is_set, program._process.process)
    assert 2e6 < program._out.size < 4e6 and not program._errors.is_closed.is_set()
    program.answer("14")
    with pytest.raises(programs.ProgramLost, match="wrote more than 2 MB"):
        program.next_request()
    endpoint.end(program)
    run(asyncio.sleep(0))
    assert program._errors.is_closed.is_set()


def test_a_program_whose_client_did_not_wait_is_started_again(agent, tmp_path):
    environment = agent("impatient", str(tmp_path / "leave"))
    (reply,) = talk(environment, "14")
    (program,) = environment._endpoint._programs.values()
    (tmp_path / "leave").touch()
    assert program._process.process.wait() == 1
    (ended,) = talk(environment, "15", state=reply.state, number=1)
    assert ended.is_done and ended.score == 0.5


def test_programs_that_wait_longest_are_ended_and_started_again(agent):
    environment = agent(programs=2)
    begun = [talk(environment, "14")[0] for _ in range(4)]
    assert len(environment._idle) == len(environment._endpoint._programs) == 2
    ended = [talk(environment, "15", state=reply.state, number=1)[0] for reply in begun]
    assert [each.score for each in ended] == [0.75] * 4 and not environment._endpoint._programs


def test_a_lost_program_that_asks_differently_later_is_lost(agent):
    environment = agent()
    (reply,) = talk(environment, "14")
    environment.close()
    changed = {**reply.state, "asked": [reply.state["asked"][0], "x"]}
    (lost,) = talk(environment, "15", state=changed, number=1)
    assert lost.text == "The program was started again, and asked differently."


def test_a_cut_conversation_is_not_scored_by_what_its_program_has_printed_so_far(agent):
    environment = agent("between")
    cut = environment.respond(Turn(PROBLEM, "14", 0, True, None))
    assert (cut.is_done, cut.is_lost, cut.score) == (False, False, None)
    assert [each.score for each in talk(environment, "14", "15")] == [None, 0.5]


@pytest.mark.parametrize("task", ["1+2" * 70_000, "1\0+2="])
def test_a_task_that_cannot_be_a_variable_or_an_argument_ends_no_run(agent, task):
    problem = replace(PROBLEM, prompt=task)
    (ended,) = talk(agent(), "15", problem=problem)
    assert ended.is_done and ended.score == 1.0
    (lost,) = talk(agent("{task}"), "15", problem=problem)
    assert lost.state["lost"] == "crashed" and lost.text.startswith("The task cannot be an argument: ")
    with pytest.raises(DataError, match="The task cannot be an argument"):
        agent_problems([problem], agent("{task}")._endpoint)


def test_a_program_that_is_killed_between_turns_is_started_again(agent):
    environment = agent()
    (reply,) = talk(environment, "14")
    (program,) = environment._endpoint._programs.values()
    program._process.process.kill()
    assert program._process.process.wait() == -9
    (ended,) = talk(environment, "15", state=reply.state, number=1)
    assert ended.score == 0.75


def test_own_settings_are_refused_if_the_run_says_so(agent, monkeypatch):
    environment = agent(settings="refuse")
    program = environment._endpoint.start(PROBLEM)
    monkeypatch.setenv("OPENAI_BASE_URL", environment._endpoint._address())
    monkeypatch.setenv("OPENAI_API_KEY", program.key)
    assert (
        complete("12+3=", temperature=0, seed=1, top_p=None)
        == "the run decides on seed, temperature; leave them out"
    )


def test_problems_of_a_program_without_a_steady_first_request_are_refused():
    for mode, reason, seconds in (("quiet", "ended without a request", SECONDS), ("hang", "within 1 s", 1.0)):
        endpoint = Endpoint([sys.executable, TOY, mode], limits=Limits(seconds=seconds))
        begun = time.monotonic()
        with pytest.raises(DataError, match=reason):
            agent_problems([PROBLEM], endpoint)
        assert time.monotonic() - begun < 2 * SECONDS
    code = "import toy, os, json, sys; toy.complete(os.urandom(4).hex())"
    endpoint = Endpoint([sys.executable, "-c", code], folder=str(Path(TOY).parent))
    with pytest.raises(DataError, match="asks differently each time about x"):
        agent_problems([PROBLEM], endpoint)


def test_a_command_that_is_not_there_is_an_error_at_the_start(tmp_path):
    wrong = {"command": ["no-such-agent", "x"], "folder": None}
    assert "there is no program 'no-such-agent' here" in next(Endpoint.machine_problems(wrong))
    assert not list(Endpoint.machine_problems({"command": ["sh"], "folder": None}))
    assert list(Endpoint.machine_problems({"command": [], "folder": None}))
    (tmp_path / "no-such-agent").write_text("")
    (tmp_path / "no-such-agent").chmod(0o755)
    assert not list(Endpoint.machine_problems({**wrong, "variables": {"PATH": str(tmp_path)}}))
