"""The world of `guessing.py` is behind a server in a process of its own, which can be killed."""

import json
import os
import signal
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from tests.configuration.compositions import composed, found

from bapo_lightning.configuration.targets import Target, target_problems
from bapo_lightning.environments.environment import Turn
from bapo_lightning.extras.openenv.actions import JsonAction, TextAction, ToolCalls
from bapo_lightning.extras.openenv.observations import shown
from bapo_lightning.extras.openenv.server import WorldServer
from bapo_lightning.extras.openenv.world import NO_ACTION
from bapo_lightning.system.errors import DataError, EnvironmentFault
from bapo_lightning.types import Problem

DOUBLE = '<tool_call>{"name": "double", "arguments": {"number": 21}}</tool_call>'


def conversation(environment, problem, texts, state=None, number=0):
    """Replies to turns; each state as a checkpoint would give it back."""
    replies = []
    state = environment.start(problem) if number == 0 else state
    for text in texts:
        replies.append(environment.respond(Turn(problem, text, number + len(replies), False, state)))
        state = json.loads(json.dumps(replies[-1].state))
    return replies


def kill_server(server):
    os.killpg(server._process.process.pid, signal.SIGKILL)


def test_an_episode_from_its_reset_to_its_end(worlds, answer):
    (problem,) = worlds.problems()
    environment = worlds.environment()
    wrong = next(str(number) for number in range(10) if str(number) != answer(problem))
    worlds.messages()
    first, second = conversation(environment, problem, [wrong, answer(problem)])
    assert (first.text, first.is_done, first.score) == (f"Not {wrong}, after 1.", False, -0.125)
    assert (second.text, second.is_done, second.score) == ("Found.", True, 0.875)
    for reply in (first, second):
        assert (reply.calls, reply.errors, reply.is_void, reply.is_lost) == (1, 0, False, False)
    steps = [f'step {{"message": "{text}"}}' for text in (wrong, answer(problem))]
    assert worlds.messages() == ['reset {"seed": 0}', *steps]
    assert not environment.is_pure


def test_the_reward_of_the_last_step_alone(worlds, answer):
    (problem,) = worlds.problems()
    *_, last = conversation(worlds.environment(score="last"), problem, ["11", answer(problem)])
    assert last.score == 1.0


def test_problems_begin_with_seeds_that_the_splits_do_not_share(worlds):
    train, held_out = worlds.problems(3), worlds.problems(2, "validation", first=1)
    assert [item.metadata["reset"]["seed"] for item in train + held_out] == [0, 2, 4, 3, 5]
    assert train[0].id == "guessing/0" and train[0].prompt == "Find my number from 0 to 9."
    assert json.loads(json.dumps(train[0].metadata)) == train[0].metadata


def test_a_prompt_has_fields_and_the_tools(worlds):
    (problem,) = worlds.problems(prompt="{text} Tools:\n{tools}\n{nothing}Begin.")
    tool = '{"name": "double", "description": "Doubles {it}."}'
    assert problem.prompt == f"Find my number from 0 to 9. Tools:\n{tool}\nBegin."


def test_calls_of_tools_and_an_answer_without_one(worlds):
    (problem,) = worlds.problems()
    environment = worlds.environment(action=ToolCalls())
    twice, wrong, broken, answered = conversation(
        environment, problem, [DOUBLE * 2, DOUBLE.replace("double", "halve"), "<tool_call>{", "It is 42."]
    )
    assert (twice.text, twice.calls, twice.errors, twice.score) == ("42\n42", 2, 0, 0.5)
    assert (wrong.calls, wrong.errors) == (1, 1) and "no such tool" in wrong.text
    assert broken.text.startswith("Error: the call is not JSON") and broken.errors == 1
    assert (answered.is_done, answered.score, answered.is_void, answered.calls) == (True, 0.5, False, 0)


def test_what_the_world_refuses_is_feedback(worlds, answer):
    (problem,) = worlds.problems()
    environment = worlds.environment(action=JsonAction())
    texts = ['I say {"number": 3}', '{"message": "fail"}', "nothing", f'{{"message": "{answer(problem)}"}}']
    refused, broken, none, found_it = conversation(environment, problem, texts)
    assert refused.text == "Error: Invalid message: message: Field required" and refused.errors == 1
    assert broken.text == "Error: the world broke" and not broken.is_done
    assert (none.text, none.is_void, none.calls) == (NO_ACTION, True, 0)
    assert found_it.is_done and found_it.score == 1.0


def test_half_of_a_character_in_an_action_is_whole_before_it_is_sent(worlds):
    (problem,) = worlds.problems()
    environment = worlds.environment(action=JsonAction())
    worlds.messages()
    (reply,) = conversation(environment, problem, ['{"message": "\\ud800"}'])
    assert reply.state["steps"][0][0] == {"message": "\ufffd"} and "\\ufffd" in worlds.messages()[-1]


def test_sessions_are_apart(worlds, answer):
    problems = worlds.problems(12)
    environment = worlds.environment()
    with ThreadPoolExecutor(6) as pool:
        played = list(pool.map(lambda item: conversation(environment, item, ["11", answer(item)]), problems))
    assert all(first.text == "Not 11, after 1." and last.is_done for first, last in played)


@pytest.mark.parametrize("lose", ["the run", "the server"])
def test_a_lost_session_is_made_again_and_no_session_is_asked_twice(worlds, answer, lose):
    (problem,) = worlds.problems()
    server = worlds.server()
    environment = worlds.environment(server)
    _, second = conversation(environment, problem, ["11", "12"])
    worlds.messages()
    environment.close() if lose == "the run" else kill_server(server)  # states of replies are left
    third, end = conversation(environment, problem, ["13", answer(problem)], second.state, 2)
    assert third.text == "Not 13, after 3." and end.is_done and end.score == 1 - 3 / 8
    steps = [f'step {{"message": "{text}"}}' for text in ("11", "12", "13", answer(problem))]
    assert worlds.messages() == ['reset {"seed": 0}', *steps]


def test_a_world_whose_actions_stay_is_not_asked_again(worlds):
    (problem,) = worlds.problems()
    server = worlds.server()
    environment = worlds.environment(server, after_loss="cut")
    (first,) = conversation(environment, problem, ["11"])
    kill_server(server)
    worlds.messages()
    (lost,) = conversation(environment, problem, ["12"], first.state, 1)
    assert lost.is_lost and not lost.is_done and lost.score is None and lost.errors == 1
    (lost,) = conversation(environment, problem, ["12"], first.state, 1)
    assert lost.is_lost and worlds.messages() == []


def test_a_world_that_answers_in_another_way_is_lost(worlds):
    (problem,) = worlds.problems()
    environment = worlds.environment()
    (first,) = conversation(environment, problem, ["chance"])
    environment.close()
    (lost,) = conversation(environment, problem, ["11"], first.state, 1)
    assert lost.is_lost and "actions differently" in lost.text
    elsewhere = Problem("x", "", "", "", {**problem.metadata, "opening": "0"})
    (lost,) = conversation(environment, elsewhere, ["11"])
    assert lost.is_lost and "differently from its problem" in lost.text


def test_an_action_that_ends_the_server_is_taken_three_times(worlds, answer):
    problem, other = worlds.problems(2)
    environment = worlds.environment()
    worlds.messages()
    (lost,) = conversation(environment, problem, ["die"])
    assert lost.is_lost and "3 times" in lost.text
    assert worlds.messages().count('step {"message": "die"}') == 3
    assert conversation(environment, other, [answer(other)])[0].is_done


def test_an_action_without_an_answer_is_lost_in_time(worlds):
    (problem,) = worlds.problems()
    environment = worlds.environment(seconds=0.5)
    begun = time.monotonic()
    (lost,) = conversation(environment, problem, ["sleep"])
    assert lost.is_lost and "no answer within 0.5 s" in lost.text and time.monotonic() - begun < 15


def test_more_conversations_than_the_server_takes(worlds, answer):
    problems = worlds.problems(3)
    environment = worlds.environment(worlds.server("1"))
    begun = [conversation(environment, item, ["11"])[-1] for item in problems]
    for item, reply in zip(problems, begun, strict=True):
        (ended,) = conversation(environment, item, [answer(item)], reply.state, 1)
        assert ended.is_done and ended.score == 0.875
    waiting = worlds.environment(worlds.server("1"), after_loss="cut", seconds=1)
    conversation(waiting, problems[0], ["11"])
    assert conversation(waiting, problems[1], [answer(problems[1])])[0].is_done  # the first one was left


def test_few_sessions_stay_open(worlds, answer):
    problems = worlds.problems(3)
    environment = worlds.environment(sessions=2)
    begun = [conversation(environment, item, ["11"])[-1] for item in problems]
    worlds.messages()
    for item, reply in zip(problems, begun, strict=True):
        assert conversation(environment, item, [answer(item)], reply.state, 1)[-1].is_done
    assert len([line for line in worlds.messages() if line.startswith("reset")]) == 1


def test_the_last_turn_is_taken_and_ends_the_session(worlds):
    (problem,) = worlds.problems()
    environment = worlds.environment()
    reply = environment.respond(Turn(problem, "11", 0, True, None))
    assert reply.score == -0.125 and not environment._idle


def test_a_server_that_cannot_start_says_why(worlds):
    (problem,) = worlds.problems()
    command = [sys.executable, "-c", "raise SystemExit('no world here')", "{port}"]
    broken = WorldServer(command=command, seconds=20)
    with pytest.raises(EnvironmentFault, match="ended with code 1; its last words: no world here"):
        worlds.environment(broken).respond(Turn(problem, "1", 0, False, None))
    nobody = WorldServer(url="http://127.0.0.1:9", seconds=0.3)
    with pytest.raises(EnvironmentFault, match=r"no OpenEnv server takes a connection at http://127.0.0.1:9"):
        worlds.environment(nobody).respond(Turn(problem, "1", 0, False, None))


def test_a_world_that_cannot_begin_is_one_clear_error(worlds):
    told = r"world guessing cannot start with {'no': 1, 'seed': 0}: no such wor"
    with pytest.raises(DataError, match=told):
        worlds.problems(reset={"no": 1})
    with pytest.raises(DataError, match="problem 7 is not an OpenEnv world"):
        worlds.environment().start(Problem("7", "1+1", "2"))


@pytest.mark.parametrize(("options", "told"), [
    ({}, "write one of them"),
    ({"url": "http://a", "command": ["{port}"]}, "write one of them"),
    ({"url": "localhost:8000"}, "write http://HOST:PORT"),
    ({"command": ["python", "-m", "world"]}, 'write "{port}" where'),
])  # fmt: skip
def test_a_server_that_is_none(options, told):
    with pytest.raises(ValueError, match=told):
        WorldServer(**options)
    node = {"_target_": "bapo_lightning.extras.openenv.server.WorldServer", **options}
    (problem,) = target_problems(node, "environment.answers.server")
    assert told in problem


@pytest.mark.parametrize(("action", "text", "found_there"), [
    (TextAction(), "First 3, no, 4.", [{"message": "First 3, no, 4."}]),
    (TextAction("move", r"\[(.*?)\]", {"player": 0}), "[3] [4]", [{"player": 0, "move": "4"}]),
    (TextAction(pattern=r"\d"), "none", []),
    (JsonAction(), 'So {"a": {"b": 1}} and {"c": "}"} it is {', [{"c": "}"}]),
    (JsonAction(), "{" * 5000, []),
    (JsonAction(), '{"a": 1} or {"a": NaN} or {"a": 1e999}', [{"a": 1}]),  # no journal takes these
    (JsonAction(), '{"a": 1} {"a": ' + "[" * 200 + "]" * 200 + "}", [{"a": 1}]),
    (ToolCalls(), "I think 42.", []),
    (ToolCalls(), DOUBLE, [{"type": "call_tool", "tool_name": "double", "arguments": {"number": 21}}]),
])  # fmt: skip
def test_the_actions_of_a_turn(action, text, found_there):
    assert action.actions(text) == found_there


def test_what_calls_report():
    for text, told in (
        ("<tool_call>3</tool_call>", "the call must be"),
        ('<tool_call>{"name": "a", "arguments": [1]}', "the call must be"),
        (DOUBLE * 5, "at most 4 calls"),
        (DOUBLE.replace("21", "Infinity"), "the call is not JSON"),
        (DOUBLE.replace("21", "[" * 200 + "]" * 200), "nested more than 100 deep"),
    ):
        with pytest.raises(ValueError, match=told):
            ToolCalls().actions(text)
    with pytest.raises(ValueError, match="null takes a whole turn"):
        TextAction(pattern="[")


@pytest.mark.parametrize(("observation", "template", "text"), [
    ({"text": "a", "none": None, "empty": []}, None, "a"),
    ({"x": 1, "y": [2]}, None, '{"x": 1, "y": [2]}'), ({}, None, ""),
    ({"messages": [{"content": "a"}, {"content": "b"}]}, "{messages.-1.content}! {messages.7.content}",
     "b! "),
    ({"x": 1}, "At {x}: {observation}", "At 1: 1"),
])  # fmt: skip
def test_what_the_policy_reads(observation, template, text):
    assert shown(observation, template) == text


def test_the_files_go_together(worlds, answer):
    server = [f"environment.answers.server.command=[{sys.executable},-m,"]
    server[0] += f"tests.extras.openenv.guessing,'{{port}}',{worlds.log}]"
    choices = ["environment=openenv", "data=openenv", "reward=environment", *server]
    model = "experiment=qwen2.5_0.5b_gsm8k"  # only its configuration
    assert found(model, *choices, "scale.max_feedback_tokens=2000") == []
    missing = found(model, *choices[:3], "scale.max_feedback_tokens=2000")
    assert missing and all("write one of them" in each for each in missing)
    config = composed(*choices)
    data = config["data"]
    data["train"]["count"] = data["validation"]["openenv"]["count"] = 2
    train, held_out = (Target(node).make() for node in (data["train"], data["validation"]["openenv"]))
    assert [item.metadata["reset"]["seed"] for item in train + held_out] == [0, 2, 1, 3]
    environment = Target(config["environment"]["answers"]).make()
    worlds.closing.append(environment)
    (reply,) = conversation(environment, train[0], [answer(train[0])])
    assert reply.is_done and reply.score == 1.0
