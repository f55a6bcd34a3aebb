"""Feedback as tokens: what templates write between two messages, and which templates are refused."""

import pytest
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from bapo_lightning.data.rollouts.feedback import ChatFeedback, PlainFeedback
from bapo_lightning.runs.inputs import turn_ends
from bapo_lightning.system.errors import ConfigError, DataError

BEGIN, END = "<|im_start|>", "<|im_end|>"
CHAT_ML = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n"
    "{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
# As Qwen's: tools speak as the user, in tags.
TOOLS_AS_USER = CHAT_ML.replace(
    "<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n",
    "{% if message.role == 'tool' %}<|im_start|>user\n<tool_response>\n{{ message.content }}\n"
    "</tool_response><|im_end|>\n"
    "{% else %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endif %}",
)
# As DeepSeek-R1's: earlier messages lose their thoughts.
WITHOUT_THOUGHTS = CHAT_ML.replace("{{ message.content }}", "{{ message.content.split('</think>')[-1] }}")
REFUSAL = "{% if message.role == 'tool' %}{{ raise_exception('no tools') }}{% endif %}"
WITHOUT_TOOLS = CHAT_ML.replace("<|im_start|>{{ message.role", REFUSAL + "<|im_start|>{{ message.role")
OTHER_END = CHAT_ML.replace("<|im_end|>", "</s>")
# A message is numbered by all that come, so that no prefix stays as it was.
COUNTING = CHAT_ML.replace("{{ message.role }}", "{{ message.role }} of {{ messages | length }}")


def tokenizer(template):
    letters = {chr(code): code for code in range(128)}
    words = {**letters, BEGIN: 128, END: 129, "[UNK]": 130}
    backend = Tokenizer(models.WordLevel(words, unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
    backend.decoder = decoders.Fuse()
    backend.add_special_tokens([BEGIN, END])
    made = PreTrainedTokenizerFast(tokenizer_object=backend, eos_token=END, unk_token="[UNK]")
    made.add_special_tokens({"additional_special_tokens": [BEGIN]})
    made.chat_template = template
    return made


@pytest.mark.parametrize(("template", "options", "message", "opening"), [
    (CHAT_ML, {}, "tool\n12", ""),
    (CHAT_ML, {"role": "user", "template": "is {feedback}."}, "user\nis 12.", ""),
    (CHAT_ML, {"opening": "<think>"}, "tool\n12", "<think>"),
    (TOOLS_AS_USER, {}, "user\n<tool_response>\n12\n</tool_response>", ""),
])  # fmt: skip
def test_feedback_is_what_the_template_writes_between_two_messages(template, options, message, opening):
    made, rule = tokenizer(template), ChatFeedback(**options)
    if not opening:
        rule.check(made)  # messages one by one are the tokens of the whole
    expected = f"\n{BEGIN}{message}{END}\n{BEGIN}assistant\n{opening}"
    assert made.decode(rule(made, "12").tolist()) == expected


@pytest.mark.parametrize(("template", "message"), [
    (WITHOUT_THOUGHTS, "may leave out thoughts"),
    (WITHOUT_TOOLS, r"no tools; write environment\.feedback\.role=user"),
    (OTHER_END, "does not end the policy's messages with its end token"),
    (COUNTING, "in another way than the policy wrote them"),
    ({"default": WITHOUT_THOUGHTS}, "may leave out thoughts"),
    (None, "has none; write environment/feedback=plain"),
])  # fmt: skip
def test_a_template_that_feedback_cannot_continue_is_refused(template, message):
    with pytest.raises(DataError, match=message):
        ChatFeedback().check(tokenizer(template))


def test_a_template_shows_the_reply():
    made = tokenizer(CHAT_ML)
    assert made.decode(PlainFeedback(" = {feedback}\n")(made, "12").tolist()) == " = 12\n"
    assert list(PlainFeedback.problems({"template": "none"})) and not list(PlainFeedback.problems({}))


def test_a_stop_text_is_one_token():
    class Environment:
        stop = ("]", "[12]")

    with pytest.raises(ConfigError, match=r"'\[12\]' is 4 tokens of this model"):
        turn_ends(Environment(), tokenizer(CHAT_ML))
    Environment.stop = ("]",)
    assert turn_ends(Environment(), tokenizer(CHAT_ML)) == (ord("]"),) and turn_ends(None, None) == ()
