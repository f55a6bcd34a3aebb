"""The record of a conversation: every sampled token with its log-prob under the version that sampled it, in
the context that the template writes; equal to an independent computation, also after weights have changed.
"""

import json
import sys
from pathlib import Path

import pytest
import torch
from tests.data.rollouts.test_feedback import CHAT_ML, END, WITHOUT_TOOLS, tokenizer
from transformers import LlamaConfig, LlamaForCausalLM

from bapo_lightning.data.rollouts.conversations import Conversations
from bapo_lightning.data.rollouts.sampler import RolloutSampler
from bapo_lightning.extras.agent.endpoint import Endpoint
from bapo_lightning.extras.agent.messages import AgentFeedback, AgentPrompt, messages_of, reply_text
from bapo_lightning.extras.agent.problems import agent_problems
from bapo_lightning.extras.agent.world import Agent
from bapo_lightning.modules.policy.policy import Policy
from bapo_lightning.rewards.environment_score import environment_score
from bapo_lightning.rollout.engine import SamplingParams
from bapo_lightning.rollout.hf.engine import HFEngine
from bapo_lightning.types import Problem, WorkItem

HERE, VOCABULARY, TURNS = Path(__file__).parent, 131, 4
# Tools in the system message, calls in tags, results as the user's, as Qwen's.
WITH_TOOLS = (
    "{% if tools %}<|im_start|>system\n{{ tools | length }} tools<|im_end|>\n{% endif %}"
    + CHAT_ML.replace(
        "{{ message.content }}",
        "{{ message.content }}{% for call in message.tool_calls %}<tool_call>{{ call.function | tojson }}"
        "</tool_call>{% endfor %}",
    )
)


def model(seed):
    """A model that ends a message after a few letters."""
    torch.manual_seed(seed)
    made = LlamaForCausalLM(LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=64, intermediate_size=64, num_hidden_layers=2,
        num_attention_heads=2, max_position_embeddings=1024,
    ))  # fmt: skip
    with torch.no_grad():
        made.model.embed_tokens.weight[:, 0] = 10.0  # the first unit is always on
        made.lm_head.weight.normal_(std=0.3)
        made.lm_head.weight[:, 0] = -1.0
        made.lm_head.weight[ord("a") : ord("a") + 8, 0] = 0.0
        made.lm_head.weight[129, 0] = 0.05
    return made.eval()


@pytest.fixture
def endpoint(tmp_path):
    made = []

    def start(*arguments):
        made.append(Endpoint([sys.executable, str(HERE / "talker.py"), *arguments]))
        return made[-1]

    yield start
    for each in made:
        each.close()


@pytest.fixture
def words():
    return tokenizer(WITH_TOOLS)


def test_every_token_is_recorded_with_the_version_and_the_log_prob_of_its_policy(endpoint, words, tmp_path):
    file = tmp_path / "messages.json"
    models = {version: model(version) for version in range(1, 9)}
    models[1].save_pretrained(tmp_path / "model")
    made = endpoint(str(file), str(TURNS))
    (problem,) = agent_problems([Problem("p", "Hi", "")], made)
    talk = Conversations(Agent(made), AgentFeedback(), words, TURNS + 1, 200, 800, 100, 0, ends=(129,))
    engine = HFEngine(str(tmp_path / "model"), max_rows=4)
    sampling = SamplingParams(1.0, (129,))
    sampler = RolloutSampler(
        engine, words, AgentPrompt(), environment_score, sampling, 100, 0,
        conversations=talk, ends=(129,),
    )  # fmt: skip
    (group,) = sampler.start([WorkItem(problem, 0)], 2)
    for (
        version,
        each,
    ) in models.items():  # two tokens a pass, so that weights change in turns and between them
        if group.is_finished:
            break
        engine.load_weights(Policy(each, 1.0), version)
        requests = sampler.requests([group], 2 if version < 7 else 100)
        for number, rollout in sampler.continued(requests, [group]).items():
            group.rollouts[requests[number].index] = rollout
    rollout, *_ = group.rollouts
    assert group.is_finished and rollout.replies[-1].is_done
    assert {segment.version for segment in rollout.sampled_segments} >= {1, 2, 3}
    compare_tokens(words, problem, rollout, json.loads(file.read_text()))
    for each in group.rollouts:
        compare_logprobs(models, each)
    (sample, _) = sampler.judge([problem] * 2, group.rollouts)
    assert sample.score.value == rollout.replies[-1].score == 2 + 2 * TURNS


def compare_tokens(words, problem, rollout, messages):
    """The tokens are those of the program's whole history, as the template writes it at once."""
    plain = [
        {
            "role": each["role"],
            "content": text if isinstance(text := each["content"], str) else text[0]["text"],
        }
        for each in messages[:-1]
    ]
    whole = words.apply_chat_template(plain, tokenize=False, tools=problem.metadata["tools"])
    assert words.decode(rollout.token_ids.tolist()) == whole.removesuffix("\n") and whole.startswith("<|im")
    assert [words.decode(turn.tolist()).removesuffix(END) for turn in rollout.turns] == [
        each["content"] for each in plain if each["role"] == "assistant"
    ]


def compare_logprobs(models, rollout):
    """By the model of each token's version, over the whole sequence at once, without the package."""
    ids, place, compared = torch.tensor([rollout.token_ids.tolist()]), len(rollout.prompt_ids), 0
    with torch.no_grad():
        scores = {version: each(ids).logits[0].log_softmax(-1) for version, each in models.items()}
    for segment in rollout.segments:
        for token, logprob in zip(segment.token_ids, segment.logprobs, strict=True):
            if not segment.is_feedback:
                own = scores[segment.version][place - 1, token].item()
                assert logprob == pytest.approx(own, abs=1e-4)
                compared += 1
            place += 1
    assert compared == rollout.length and place == ids.shape[1]


def conversation(environment, problem, *texts):
    from bapo_lightning.environments.environment import Turn

    found, state = [], None
    for number, text in enumerate(texts):
        found.append(environment.respond(Turn(problem, text, number, False, state)))
        state = found[-1].state
    return found


@pytest.mark.parametrize("streams", [(), ("stream",)])
def test_calls_of_tools_reach_a_program_and_come_back_as_one_sample(endpoint, words, tmp_path, streams):
    file = tmp_path / "messages.json"
    made = endpoint(str(file), "2", *streams)
    (problem,) = agent_problems([Problem("p", "Hi", "")], made)
    assert [tool["function"]["name"] for tool in problem.metadata["tools"]] == ["look"]
    prompt = words.decode(AgentPrompt()(words, problem).tolist())
    assert prompt.startswith("<|im_start|>system\n1 tools<|im_end|>") and prompt.endswith("assistant\n")
    called = 'So: <tool_call>{"name": "look", "arguments": {"at": 1}}</tool_call><tool_call>{"name": "look", '
    called += '"arguments": {}}</tool_call>'
    first, last = conversation(Agent(made), problem, called, "<tool_call>look</tool_call>")
    assert messages_of(first.text) == [
        {"role": "tool", "content": "seen 0"}, {"role": "tool", "content": "seen 1"},
        {"role": "user", "content": "And 0?"},
    ]  # fmt: skip
    assert last.is_done and last.score == 2 + 4 + 2
    *_, asked, _, _, _, answer, _ = json.loads(file.read_text())
    calls = [call["function"] for call in asked["tool_calls"]]
    assert asked["content"] == "So:" and [json.loads(call["arguments"]) for call in calls] == [{"at": 1}, {}]
    assert answer["content"] == "<tool_call>look</tool_call>"  # not well written, and so a text


def test_a_program_gets_the_metadata_of_its_task_and_a_completion_no_template(words):
    code = "import toy, json, sys; p = json.load(sys.stdin); "
    code += "toy.complete(json.dumps([p['task'], p['metadata']]))"
    made = Endpoint([sys.executable, "-c", code], folder=str(HERE))
    metadata = {"task": "kept", "messages": [{"role": "user", "content": "Ho"}], "a": 1}
    (problem,) = agent_problems([Problem("p", "Hi", "", metadata=metadata)], made)
    assert problem.prompt == json.dumps(["Hi", metadata]) and problem.metadata["a"] == 1
    assert words.decode(AgentPrompt()(words, problem).tolist()) == problem.prompt
    (reply,) = conversation(Agent(made), problem, "x")
    made.close()
    assert reply.is_done and not reply.is_lost
    assert words.decode(AgentPrompt()(words, Problem("p", "Hi", "")).tolist()).startswith("<|im_start|>")


def test_a_reply_of_several_messages_is_what_the_template_writes_and_survives_a_cut(words):
    messages = [{"role": "tool", "content": "1\x1e2"}, {"role": "user", "content": "3"}]
    text, rule = reply_text(messages), AgentFeedback()
    rule.check(words)
    shown = words.decode(AgentFeedback(template="So: {feedback}")(words, text).tolist())
    assert "user\nSo: 3<|im_end|>" in shown
    expected = "\n<|im_start|>tool\n12<|im_end|>\n<|im_start|>user\n3<|im_end|>\n<|im_start|>assistant\n"
    assert words.decode(rule(words, text).tolist()) == expected
    assert reply_text([messages[1]]) == "3" and messages_of("") == [{"role": "user", "content": ""}]
    cut = [messages_of(text[:length])[0]["role"] for length in range(len(text))]
    assert set(cut) == {"user", "tool"} and rule.blank(text) == reply_text(
        [{**message, "content": "0"} for message in messages]
    )
    words.chat_template = WITHOUT_TOOLS
    assert "<|im_start|>user\n12\n3<|im_end|>" in words.decode(rule(words, text).tolist())


def test_no_content_of_a_program_becomes_a_control_token(words):
    talk = Conversations(None, AgentFeedback(), words, 9, 200, 400, 50, 0)
    text = reply_text([{"role": "tool", "content": f"a{END}b"}, {"role": "user", "content": "<|im_start|>c"}])
    assert words.decode(talk._feedback(text).tolist()).count(END) == 2
    assert "tool\nab<|im_end|>" in words.decode(talk._feedback(text).tolist())
