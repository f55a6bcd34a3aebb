"""No text of an environment is ever encoded as a token that orders a conversation."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.data.rollouts.test_feedback import CHAT_ML
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from bapo_lightning.data.rollouts.control_tokens import ControlTokens
from bapo_lightning.data.rollouts.conversations import _NOT_SHOWN, Conversations
from bapo_lightning.data.rollouts.feedback import ChatFeedback, PlainFeedback

LLAMA = (
    "{% for m in messages %}<|start_header_id|>{{ m.role }}<|end_header_id|>\n\n{{ m.content }}<|eot_id|>"
    "{% endfor %}{% if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>\n\n{% endif %}"
)
DEEPSEEK = (
    "{% for m in messages %}{% if m.role == 'assistant' %}<｜Assistant｜>{{ m.content }}<｜end｜>"
    "{% else %}<｜User｜>{{ m.content }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<｜Assistant｜>{% endif %}"
)
PUT_TOGETHER = (
    "{% for m in messages %}{{ '<|' + m.role + '|>' }}{{ m.content }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)
# Template, special tokens, and tokens that are called none; the last special one ends messages.
FAMILIES = {
    "of the map": (CHAT_ML, ["<|im_start|>", "<|im_end|>"], []),
    "special, not in the map": (LLAMA, ["<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"], []),
    "not special": (DEEPSEEK, ["<｜end｜>"], ["<｜User｜>", "<｜Assistant｜>"]),
    "put together": (PUT_TOGETHER, ["<|end|>"], ["<|user|>", "<|assistant|>", "<|system|>", "<|tool|>"]),
    "without a template": (None, ["</s>"], []),
}
LOWER = normalizers.Sequence([normalizers.NFKC(), normalizers.Lowercase()])


def tokenizer(family, normalizer=None):
    template, special, ordinary = FAMILIES[family]
    words = {chr(code): code for code in range(128)} | {"[UNK]": 128}
    backend = Tokenizer(models.WordLevel(words, unk_token="[UNK]"))
    backend.pre_tokenizer, backend.decoder = pre_tokenizers.Split(Regex("."), "isolated"), decoders.Fuse()
    if normalizer is not None:
        backend.normalizer = normalizer
    for text in [*special, *ordinary, "    "]:
        token = AddedToken(text, special=text in special, normalized=normalizer is not None)
        (backend.add_special_tokens if text in special else backend.add_tokens)([token])
    made = PreTrainedTokenizerFast(tokenizer_object=backend, eos_token=special[-1], unk_token="[UNK]")
    made.chat_template = template
    return made


@pytest.fixture(scope="module", params=[(name, how) for name in FAMILIES for how in (None, LOWER)], ids=str)
def family(request):
    name, normalizer = request.param
    made = tokenizer(name, normalizer)
    return made, made.convert_tokens_to_ids([*FAMILIES[name][1], *FAMILIES[name][2]]), name


def test_the_sample_is_one_control_token_each(family):
    made, controls, name = family
    texts = [*FAMILIES[name][1], *FAMILIES[name][2]]
    assert [made.encode(text, add_special_tokens=False) for text in texts] == [[each] for each in controls]


@settings(max_examples=60)
@given(data=st.data())
def test_no_text_is_encoded_as_a_control_token(family, data):
    made, controls, name = family
    names = [*FAMILIES[name][1], *FAMILIES[name][2]]
    halves = [part for text in names for cut in (2, 5, -3) for part in (text[:cut], text[cut:])]
    pieces = [*names, *halves, *(text.upper() for text in names), "＜|im_end|＞", "ſ", "x", " ", "    ", "ä"]
    text = "".join(data.draw(st.lists(st.sampled_from(pieces) | st.text(max_size=3), max_size=12)))
    shown = ControlTokens(made).removed_from(text)
    assert not {*controls} & {*made.encode(shown, add_special_tokens=False)}
    around = ChatFeedback(role="user") if made.chat_template else PlainFeedback("= {feedback}")
    own, held = ([token for token in around(made, each) if token in controls] for each in ("x", shown))
    assert own == held


def test_a_text_without_control_tokens_stays_as_it_is(family):
    made, _, _ = family
    text = "if x < 2:\n    print('ä', '<|', '|>')\n<div>assistant user</div> [UNK"
    assert ControlTokens(made).removed_from(text) == text


def test_a_text_cannot_complete_what_stands_next_to_it():
    made = tokenizer("of the map")
    rule = PlainFeedback("<|im_{feedback}|>")
    conversations = Conversations(None, rule, made, 2, 99, 99, 99, workers=0)
    assert made.decode(conversations._feedback("ended")) == "<|im_ended|>"
    assert made.decode(conversations._feedback("end")) == f"<|im_{_NOT_SHOWN}|>"
    conversations.max_reply_tokens = 3
    assert made.decode(conversations._feedback("a<|im_end|>bcd")) == "<|im_abc|>"
