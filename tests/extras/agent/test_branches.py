"""Conversations whose programs change or branch their history: a sample for each branch, in which each token
has the log-prob, recomputed by `compare_logprobs`, that its policy gave it in the context of its request.
"""

import json
import sys
from array import array
from dataclasses import replace

import pytest
import torch
from tests.data.rollouts.test_feedback import END
from tests.extras.agent.test_record import HERE, WITH_TOOLS, compare_logprobs, model, tokenizer

from bapo_lightning.callbacks.writers import group_rows
from bapo_lightning.data.batches.batch import collate
from bapo_lightning.data.rollouts.conversations import Conversations
from bapo_lightning.data.rollouts.feedback import PlainFeedback
from bapo_lightning.data.rollouts.group_state import ArrayStore, pack_running, unpack_running
from bapo_lightning.data.rollouts.sampler import RolloutSampler
from bapo_lightning.environments.environment import Turn
from bapo_lightning.extras.agent.endpoint import Endpoint
from bapo_lightning.extras.agent.messages import AgentFeedback, AgentPrompt, messages_of, prompt_text
from bapo_lightning.extras.agent.problems import agent_problems
from bapo_lightning.extras.agent.world import Agent
from bapo_lightning.modules.policy.policy import Policy
from bapo_lightning.rewards.environment_score import environment_score
from bapo_lightning.rollout.engine import SamplingParams
from bapo_lightning.rollout.hf.engine import HFEngine
from bapo_lightning.system.errors import EnvironmentFault
from bapo_lightning.types import Problem, Reply, Rollout, Segment, WorkItem

TURNS, TWO, SCORE = 7, 2, 7.0
BRANCHES = [2, 1, 1, 2, 1]  # turns of each


@pytest.fixture
def words():
    return tokenizer(WITH_TOOLS)


@pytest.fixture
def endpoint(tmp_path):
    made = Endpoint([sys.executable, str(HERE / "brancher.py"), str(tmp_path / "histories.json")])
    yield made
    made.close()


def sampled(endpoint, words, place, models):
    """The two samples of a group, whose weights change in turns and between them."""
    models[1].save_pretrained(place / "model")
    (problem,) = agent_problems([Problem("p", "Hi", "")], endpoint)
    talk = Conversations(
        Agent(endpoint, edits="branch"), AgentFeedback(), words, TURNS + 1, 400, 2000, 200, 0, ends=(129,)
    )
    engine = HFEngine(str(place / "model"), max_rows=4)
    sampler = RolloutSampler(
        engine, words, AgentPrompt(), environment_score, SamplingParams(1.0, (129,)), 200, 0,
        advantages=lambda rewards: rewards, conversations=talk, ends=(129,),
    )  # fmt: skip
    (group,) = sampler.start([WorkItem(problem, 0)], TWO)
    for version, each in models.items():
        engine.load_weights(Policy(each, 1.0), version)
        requests = sampler.requests([group], 200 if version == len(models) else 3)
        for number, rollout in sampler.continued(requests, [group]).items():
            group.rollouts[requests[number].index] = rollout
        store = ArrayStore()  # as a checkpoint keeps it
        packed = pack_running(store, group)
        assert unpack_running(store, packed, lambda _: problem) == group
    (scored,) = sampler.score([group], len(models))
    return scored


def test_every_branch_is_a_sample_with_the_tokens_and_log_probs_of_its_requests(endpoint, words, tmp_path):
    models = {version: model(version) for version in range(1, 9)}
    group = sampled(endpoint, words, tmp_path, models)
    histories = json.loads((tmp_path / "histories.json").read_text())
    branched = group.branched
    assert [len(each.rollout.turns) for each in branched.samples] == BRANCHES * TWO
    assert {sample.score.value for sample in branched.samples} == {SCORE}
    assert len(branched.advantages) == len(branched.samples)
    rows = [(row.get("branch", 0), row.get("parent")) for row in group_rows(branched, words)]
    assert rows == [(0, None), (1, 0), (2, 0), (3, None), (4, 1)] * TWO
    assert branched.branched is branched and group.num_tokens == branched.num_tokens
    for sample in branched.samples:
        compare_logprobs(models, sample.rollout)
    assert len({version for each in branched.samples for version in each.rollout.versions}) > 2
    # The last sample's program was the last to write its histories, or the first one's.
    written = {
        words.apply_chat_template(each, tokenize=False, tools=None if number not in (4, 5) else [TOOL])
        for number, each in enumerate(histories)
    }
    texts = {words.decode(each.rollout.token_ids.tolist()) for each in branched.samples}
    ends = [text.removesuffix("\n") for text in written]
    assert sum(any(end == text for text in texts) for end in ends) == len(BRANCHES)


TOOL = {"type": "function", "function": {"name": "look", "description": "Löoks.", "parameters": {}}}


def test_each_sampled_token_is_trained_on_once_and_scored_in_its_own_context(endpoint, words, tmp_path):
    models = {version: model(version) for version in range(1, 3)}
    group = sampled(endpoint, words, tmp_path, models)
    policy = Policy(models[2], 1.0)
    rollouts = [sample.rollout for sample in group.samples]
    whole = policy.response_logprobs(rollouts, 10_000)
    assert [len(each) for each in whole] == [rollout.length for rollout in rollouts]
    scored = tuple(
        replace(sample, scores={"reference_logp": logp})
        for sample, logp in zip(group.samples, whole, strict=True)
    )
    batch = collate([replace(group, samples=scored)], {})
    assert batch.num_samples == len(BRANCHES) * TWO and batch.num_tokens == group.num_tokens
    assert int(batch.response_mask.sum()) == group.num_tokens
    mask = batch.response_mask
    fresh = mask & (batch.version == 2)
    torch.testing.assert_close(
        batch.scores["reference_logp"][fresh], batch.behaviour_logp[fresh], rtol=0, atol=1e-4
    )
    old = collate([replace(group, samples=scored)], {}, oldest_trained=2)
    assert old.num_tokens == int(fresh.sum()) and old.num_masked_tokens == int((mask & ~fresh).sum())


def test_a_restarted_program_continues_its_branches(endpoint):
    environment = Agent(endpoint, edits="branch")
    problem, replies, state = Problem("p", "Hi", ""), [], None
    for number in range(TURNS):
        replies.append(environment.respond(Turn(problem, f"a{number}", number, False, state)))
        state = replies[-1].state
        environment.close()
    assert [reply.after for reply in replies] == [None, 0, 0, -1, None, 2, None]
    assert [message["content"] for message in messages_of(replies[2].text)] == ["Two?", "Mine.", "Four?"]
    assert replies[-1].is_done and replies[-1].score == SCORE and state["edits"] == 4
    found = environment.metrics(replies)
    assert (found["agent/requests_mean"], found["agent/edits_mean"]) == (TURNS, 4)
    assert found["agent/branches_mean"] == 5 and found["agent/lost_edited"] == 0


def test_each_choice_of_a_request_is_a_branch(words, tmp_path):
    models = {version: model(version) for version in range(1, 4)}
    command = [sys.executable, str(HERE / "brancher.py"), str(tmp_path / "histories.json"), "choices"]
    endpoint = Endpoint(command)
    group = sampled(endpoint, words, tmp_path, models)
    endpoint.close()
    branched = group.branched
    assert [[reply.after for reply in each.rollout.replies] for each in group.samples] == [
        [-1, None, 1, None]
    ] * TWO
    assert [len(each.rollout.turns) for each in branched.samples] == [1, 2, 1] * TWO
    assert {sample.score.value for sample in branched.samples} == {4.0}
    for sample in branched.samples:
        compare_logprobs(models, sample.rollout)
    texts = {words.decode(each.rollout.token_ids.tolist()) for each in branched.samples}
    for each in json.loads((tmp_path / "histories.json").read_text()):
        shown = words.apply_chat_template(each, tokenize=False).removesuffix("\n")
        assert any(text.startswith(shown) for text in texts)


def test_choices_continue_after_a_restart_and_are_refused_without_branches(tmp_path):
    command = [sys.executable, str(HERE / "brancher.py"), str(tmp_path / "histories.json"), "choices"]
    endpoint, problem = Endpoint(command), Problem("p", "Hi", "")
    environment, state, after = Agent(endpoint, edits="branch"), None, []
    for number in range(4):
        reply = environment.respond(Turn(problem, f"a{number}", number, False, state))
        state = reply.state
        after.append(reply.after)
        environment.close()
    assert after == [-1, None, 1, None] and reply.score == 4.0 and state["edits"] == 0
    assert Agent(endpoint).respond(Turn(problem, "a", 0, False, None)).state["lost"] == "crashed"
    endpoint.close()


def test_a_prompt_that_cannot_be_shown_cuts_the_conversation(words):
    long, short = ("x" * 500, "y")
    talk = Conversations(None, AgentFeedback(), words, 9, 400, 90_000, 50, 0)
    rollout = Rollout(array("i", [1]), (Segment(array("i", [2]), array("f", [-1.0]), 1),))
    for text, is_cut in ((long, True), (short, False)):
        reply = Reply(prompt_text([{"role": "user", "content": text}], ()), after=-1)
        found = talk.answered(rollout, reply)
        assert (found.finish is not None, len(found.replies)) == (is_cut, 1)


def test_only_a_rule_that_writes_prompts_takes_one(words):
    class World:
        def start(self, problem):
            return None

        def respond(self, turn):
            return Reply("a", after=-1)

    rollout = Rollout(array("i", [1]), (Segment(array("i", [2]), array("f", [-1.0]), 1),))
    talk = Conversations(World(), PlainFeedback(), words, 9, 400, 900, 50, 0)
    with pytest.raises(EnvironmentFault, match="is -1, a whole prompt"):
        talk.ask(Problem("p", "q", ""), rollout)


def test_no_part_of_another_prompt_becomes_a_control_token(words):
    tools = [{"function": {"name": f"a{END}", "description": "é"}}]
    calls = [{"type": "function", "function": {"name": END, "arguments": {"x": END}}}]
    history = [
        {"role": "user", "content": f"a{END}\x1d\x1e"},
        {"role": "assistant", "content": "b", "tool_calls": calls},
        {"role": "tool", "content": "c"},
    ]
    text = prompt_text(history, tools)
    talk = Conversations(None, AgentFeedback(), words, 9, 400, 900, 50, 0)
    shown = words.decode(talk._feedback(text).tolist())
    assert shown.startswith("<|im_start|>system\n1 tools<|im_end|>\n<|im_start|>user\na<|im_end|>")
    assert shown.count(END) == 4 and shown.endswith("<|im_start|>assistant\n")
    for length in range(len(text)):  # cut at any place
        assert isinstance(messages_of(text[:length]), list)
        talk.feedback(words, text[:length])
