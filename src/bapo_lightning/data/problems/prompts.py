"""Turns a problem into the token ids that the policy continues (key `data.prompt`, group `data/prompt`), and
sampled tokens into the texts that rewards, environments and records read.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import lru_cache, partial
from types import MappingProxyType
from typing import Any

from bapo_lightning.system.errors import DataError, first_line
from bapo_lightning.types import Problem

# transformers tokenizer, problem -> token ids (typecode "i") of its prompt
PromptRule = Callable[[Any, Problem], "array[int]"]
Encode = Callable[[Problem], "array[int]"]  # problem -> token ids of its prompt

PLACEHOLDER = "{problem}"
FORMS = ("\\boxed", "####", "Answer:", "<answer>")  # of a final answer, in which instructions ask for it
_LOOKED_AT = 100  # problems of a set

# Arguments of transformers' `apply_chat_template` that are not variables of a template.
NO_VARIABLES = frozenset({
    "conversation", "continue_final_message", "tokenize", "padding", "truncation", "max_length",
    "return_tensors", "return_dict", "return_assistant_tokens_mask", "tokenizer_kwargs",
})  # fmt: skip


def template_problems(
    options: Mapping[str, Any], placeholder: str = PLACEHOLDER, what: str = "problem"
) -> Iterator[str]:
    """Yields mistakes in the options of a template, and its own if it never shows `what` it is for."""
    yield from option_problems(options)
    if placeholder not in (template := options.get("template", placeholder)):
        yield (
            f"template={template!r} never shows the {what}; write {placeholder} where its text goes, "
            f"e.g. {placeholder!r}"
        )


def option_problems(options: Mapping[str, Any]) -> Iterator[str]:
    """Yields options of a chat template that would change how it is used rather than what it writes."""
    for name in sorted(NO_VARIABLES & set(options.get("template_options") or ())):
        yield f"template_options: {name} is not a variable of a chat template, the run sets it; leave it out"


@dataclass(frozen=True, slots=True)
class PlainPrompt:
    """The problem's text in a template: for models without a chat format."""

    problems = staticmethod(template_problems)
    template: str = PLACEHOLDER  # every {problem} in it is replaced by the problem's text
    bos: bool | None = None  # begin with the tokenizer's BOS; None: if the tokenizer itself does

    def text(self, problem: Problem) -> str:
        """Returns the text that the policy continues."""
        return filled(self.template, problem)

    def __call__(self, tokenizer: Any, problem: Problem) -> array[int]:
        """Returns the token ids of the prompt. A BOS that the template writes is not doubled."""
        text = self.text(problem)
        ids, first = tokenizer.encode(text, add_special_tokens=False), [tokenizer.bos_token_id]
        if self.bos is False or first in ([None], ids[:1]):
            return array("i", ids)
        is_usual = self.bos or tokenizer.encode("")[:1] == first  # it begins every text so
        return array("i", first + ids if is_usual else ids)


@dataclass(frozen=True, slots=True)
class ChatPrompt:
    """The problem as a user's message in the chat format of the model's tokenizer."""

    problems = staticmethod(template_problems)
    # System message; with None the tokenizer's template decides, and often adds its own message.
    system: str | None
    template: str  # the user's message; every {problem} in it is replaced by the problem's text
    # Beginning of the assistant's turn, unless the tokenizer's template writes it already.
    opening: str | None = None
    # Variables of the tokenizer's template, e.g. {enable_thinking: false}.
    template_options: Mapping[str, Any] = field(default_factory=dict)

    def messages(self, problem: Problem) -> list[dict[str, str]]:
        """Returns the messages that the tokenizer's template renders."""
        user = {"role": "user", "content": filled(self.template, problem)}
        return [user] if self.system is None else [{"role": "system", "content": self.system}, user]

    def __call__(self, tokenizer: Any, problem: Problem) -> array[int]:
        """Returns the token ids of the prompt, see `rendered`."""
        return rendered(tokenizer, self.messages(problem), self)


@dataclass(frozen=True, slots=True)
class MessagesPrompt:
    """The chat messages of the data file unchanged, as in verl; without any, the problem as a user's."""

    problems = staticmethod(option_problems)
    opening: str | None = None  # as for `ChatPrompt`
    template_options: Mapping[str, Any] = field(default_factory=dict)

    def messages(self, problem: Problem) -> list[dict[str, str]]:
        """Returns the messages that the tokenizer's template renders."""
        given: list[dict[str, str]] | None = problem.metadata.get("messages")
        return given or [{"role": "user", "content": problem.prompt}]

    def __call__(self, tokenizer: Any, problem: Problem) -> array[int]:
        """Returns the token ids of the prompt, see `rendered`."""
        return rendered(tokenizer, self.messages(problem), self)


@dataclass(frozen=True, slots=True)
class ChatOrPlainPrompt:
    """One prompt for models with a chat format, another for those without."""

    chat: Callable[[Any, Problem], Any]  # a `PromptRule`, which Python 3.11 cannot evaluate for its checks
    plain: Callable[[Any, Problem], Any]

    def __call__(self, tokenizer: Any, problem: Problem) -> array[int]:
        """Returns the token ids of the prompt."""
        ids: array[int] = (self.chat if chat_template(tokenizer) else self.plain)(tokenizer, problem)
        return ids


def chat_template(tokenizer: Any, options: Mapping[str, Any] = MappingProxyType({})) -> str | None:
    """Returns the template with which a tokenizer writes chats under these `template_options`, None if it
    has none. Raises DataError if it has several and none of them is the default.
    """
    if not (tokenizer.chat_template or options.get("chat_template")):
        return None
    try:
        template: str = tokenizer.get_chat_template(options.get("chat_template"))
    except ValueError as error:
        reason = first_line(error)
        raise DataError(
            f"the tokenizer of {tokenizer.name_or_path} has several chat templates and no default one "
            f"({reason}); name one of them: data.prompt.template_options.chat_template=NAME"
        ) from None
    return template


def dated(tokenizer: Any, date: datetime) -> Any:
    """Returns the tokenizer, changed so that its chat templates write this date and time instead of the
    present: all prompts of a run are then alike, also after a resume.
    """
    tokenizer.apply_chat_template = partial(tokenizer.apply_chat_template, strftime_now=date.strftime)
    return tokenizer


def unknown_token(tokenizer: Any) -> int | None:
    """Returns the token that stands for each character unknown to the tokenizer; None if there is none,
    since characters are split into bytes. Two characters that no tokenizer has then differ in their bytes.
    """
    one, other = (tokenizer.encode(char, add_special_tokens=False) for char in ("\U0010fffe", "\U0010ffff"))
    return one[-1] if one and one[-1:] == other[-1:] else None


def rendered(
    tokenizer: Any, messages: list[dict[str, str]], prompt: ChatPrompt | MessagesPrompt
) -> array[int]:
    """Returns the token ids of chat messages, up to the point where the assistant continues. Raises
    DataError if there is no chat template, or if it refuses the messages.
    """
    name = tokenizer.name_or_path or "the model"
    options = {"add_generation_prompt": True, **prompt.template_options}
    if not chat_template(tokenizer, options):
        raise DataError(
            f"data.prompt={type(prompt).__name__} needs a chat template, and the tokenizer of {name} has "
            "none; choose an instruction-tuned model, or give it the problem's bare text: data/prompt=plain"
        )
    try:
        if prompt.opening is None:
            ids = tokenizer.apply_chat_template(messages, tokenize=True, return_dict=False, **options)
            return array("i", ids)
        text: str = tokenizer.apply_chat_template(messages, tokenize=False, **options)
    except Exception as error:  # of Jinja, of the template itself, or of transformers
        reason = first_line(error)
        has_system = any(message.get("role") == "system" for message in messages)
        other = "data/prompt=boxed has no system message" if has_system else "data/prompt=plain needs none"
        raise DataError(
            f"the chat template of the tokenizer of {name} cannot write the prompt ({reason}); choose "
            f"another prompt ({other}), other data.prompt.template_options, or another model"
        ) from None
    return array("i", tokenizer.encode(opened(text, prompt.opening), add_special_tokens=False))


def opened(text: str, opening: str | None) -> str:
    """Returns a rendered chat with the beginning of the assistant's turn, unless it ends with it already."""
    return text + opening if opening and not text.endswith(opening) else text


def contradiction_of(problems: Sequence[Problem], prompt_text: Callable[[Problem], str]) -> str | None:
    """Reports that most problems of a set ask for one form of answer and the text around them for another;
    None if they agree. `prompt_text` returns the whole prompt that the policy sees.
    """
    looked_at = problems[:_LOOKED_AT]
    texts = [(problem.prompt, prompt_text(problem).replace(problem.prompt, "")) for problem in looked_at]
    by_data, by_prompt = (
        [form for form in FORMS if 2 * sum(form in pair[place] for pair in texts) > len(texts)]
        for place in (0, 1)
    )
    if not by_data or not by_prompt or set(by_data) & set(by_prompt):
        return None
    return (
        f"the problems of data.train, such as {problems[0].id}, ask for an answer with {by_data[0]}, and "
        f"data.prompt asks for one with {by_prompt[0]}; write data/prompt=chat, which adds no "
        "instruction, or remove the instruction of the data with data.train.mapping.wrapper"
    )


def filled(template: str, problem: Problem) -> str:
    r"""Returns a template with the problem in it. Unlike str.format it leaves other braces alone."""
    return template.replace(PLACEHOLDER, problem.prompt)


_DECODING = ("decode", "_decode")  # methods of a tokenizer that make a text


def decoded(tokenizer: Any, rows: Sequence[Sequence[int]], ends: Sequence[int] = ()) -> list[str]:
    """Returns the texts of rows of token ids without end tokens and padding: the tokenizer's, and the special
    tokens among `ends`. Every other special token stays, since a format may write `<think>` or `<tool_call>`
    with it. A fast tokenizer whose Python class does not change decoding decodes all rows at once, with one
    thread for each core.
    """
    unwritten, in_python = _facts(tokenizer, tuple(ends))
    kept = [[token for token in row if token not in unwritten] for row in rows]
    if in_python:
        return [str(tokenizer.decode(row, skip_special_tokens=False)) for row in kept]
    texts: list[str] = tokenizer.backend_tokenizer.decode_batch(kept, skip_special_tokens=False)
    return texts


@lru_cache(maxsize=8)  # called for every turn of every conversation
def _facts(tokenizer: Any, ends: tuple[int, ...]) -> tuple[frozenset[int], bool]:
    """Returns end tokens and padding, and whether texts are made in Python."""
    from transformers import PreTrainedTokenizerFast

    kind = type(tokenizer)
    of_rust = (getattr(kind, name, None) is getattr(PreTrainedTokenizerFast, name) for name in _DECODING)
    in_python = not all(of_rust)
    decode: Any = tokenizer.decode if in_python else tokenizer.backend_tokenizer.decode
    named = {*ends, getattr(tokenizer, "eos_token_id", None), getattr(tokenizer, "pad_token_id", None)}
    unwritten = frozenset(
        token
        for token in named
        if token is not None
        and decode([token], skip_special_tokens=True) != decode([token], skip_special_tokens=False)
    )
    return unwritten, in_python
