"""OpenAI's own client, which vLLM brings, at the endpoint of environment=agent."""

import sys
from pathlib import Path

from bapo_lightning.environments.environment import Turn
from bapo_lightning.extras.agent.endpoint import Endpoint
from bapo_lightning.extras.agent.problems import agent_problems
from bapo_lightning.extras.agent.world import Agent
from bapo_lightning.types import Problem

CALL = '<tool_call>{"name": "f", "arguments": {"a": 1}}</tool_call>'


def test_the_client_reads_responses_and_choices_streamed_and_not():
    endpoint = Endpoint([sys.executable, str(Path(__file__).with_name("openai_program.py"))])
    (problem,) = agent_problems([Problem("p", "Hi", "")], endpoint)
    environment, state = Agent(endpoint, edits="branch"), None
    try:
        for number, text in enumerate(("one", CALL, "three", "four", "five")):
            reply = environment.respond(Turn(problem, text, number, False, state))
            assert not reply.is_lost, reply.text
            state = reply.state
    finally:
        environment.close()
    assert (reply.is_done, reply.score, reply.errors) == (True, 1.0, 0)
    assert state["edits"] == 1  # the other prompt
