"""How a problem becomes the token ids that the policy continues (key `data.prompt`, group `data/prompt`)."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from bapo_lightning.errors import DataError, first_line
from bapo_lightning.types import Problem

# transformers tokenizer, problem -> token ids (typecode "i") of its prompt
PromptRule = Callable[[Any, Problem], "array[int]"]
Encode = Callable[[Problem], "array[int]"]  # problem -> token ids of its prompt

PLACEHOLDER = "{problem}"


# Arguments of transformers' `apply_chat_template` that are no variables of a template.
NO_VARIABLES = frozenset({
    "conversation", "continue_final_message", "tokenize", "padding", "truncation", "max_length",
    "return_tensors", "return_dict", "return_assistant_tokens_mask", "tokenizer_kwargs",
})  # fmt: skip


def template_problems(options: Mapping[str, Any]) -> Iterator[str]:
    """Yields what is wrong with a template that never shows the problem, and with its options."""
    yield from option_problems(options)
    if PLACEHOLDER not in (template := options.get("template", PLACEHOLDER)):
        yield (
            f"template={template!r} never shows the problem; write {PLACEHOLDER} where its text goes, "
            f"e.g. {PLACEHOLDER!r}"
        )


def option_problems(options: Mapping[str, Any]) -> Iterator[str]:
    """Yields the options of a chat template that would change how it is used, instead of what it writes."""
    for name in sorted(NO_VARIABLES & set(options.get("template_options") or ())):
        yield f"template_options: {name} is no variable of a chat template, the run sets it; leave it out"


@dataclass(frozen=True, slots=True)
class PlainPrompt:
    """The problem's text in a template: for models without a chat format."""

    problems = staticmethod(template_problems)
    template: str = PLACEHOLDER  # every {problem} in it is replaced by the problem's text
    bos: bool | None = None  # begin with the tokenizer's BOS; None: where the tokenizer itself would

    def text(self, problem: Problem) -> str:
        """Returns the text that the policy continues."""
        return filled(self.template, problem)

    def __call__(self, tokenizer: Any, problem: Problem) -> array[int]:
        """Returns the token ids of the prompt. A BOS that the template writes is not doubled."""
        text = self.text(problem)
        ids, first = tokenizer.encode(text, add_special_tokens=False), [tokenizer.bos_token_id]
        if self.bos is False or first in ([None], ids[:1]):
            return array("i", ids)
        is_usual = self.bos or tokenizer.encode("")[:1] == first  # what it puts before any text
        return array("i", first + ids if is_usual else ids)


@dataclass(frozen=True, slots=True)
class ChatPrompt:
    """The problem as a user's message in the chat format of the model's tokenizer."""

    problems = staticmethod(template_problems)
    # System message; with None the tokenizer's template decides, and often adds a message of its own.
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
    """The chat messages of the data file unchanged, as in verl; without any, the problem is the user's."""

    problems = staticmethod(option_problems)
    opening: str | None = None  # as for `ChatPrompt`
    template_options: Mapping[str, Any] = field(default_factory=dict)

    def messages(self, problem: Problem) -> list[dict[str, str]]:
        """Returns the messages that the tokenizer's template renders."""
        own: list[dict[str, str]] | None = problem.metadata.get("messages")
        return own or [{"role": "user", "content": problem.prompt}]

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
    """Returns the template with which a tokenizer writes chats under such `template_options`, None without
    one. Raises DataError where it has several and none of them is the default.
    """
    if not (tokenizer.chat_template or options.get("chat_template")):
        return None
    try:
        found: str = tokenizer.get_chat_template(options.get("chat_template"))
    except ValueError as error:
        reason = first_line(error)
        raise DataError(
            f"the tokenizer of {tokenizer.name_or_path} has several chat templates and no default one "
            f"({reason}); name one of them: data.prompt.template_options.chat_template=NAME"
        ) from None
    return found


def unknown_token(tokenizer: Any) -> int | None:
    """Returns the token that stands for each character that a tokenizer does not have; None where there is
    none, since characters fall apart into bytes. Of two that nobody has, bytes differ.
    """
    one, other = (tokenizer.encode(char, add_special_tokens=False) for char in ("\U0010fffe", "\U0010ffff"))
    return one[-1] if one and one[-1:] == other[-1:] else None


def rendered(
    tokenizer: Any, messages: list[dict[str, str]], prompt: ChatPrompt | MessagesPrompt
) -> array[int]:
    """Returns the token ids of chat messages, up to where the assistant goes on. Raises DataError without a
    chat template, and for messages that it refuses.
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
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        has_system = any(message.get("role") == "system" for message in messages)
        other = "data/prompt=boxed has no system message" if has_system else "data/prompt=plain needs none"
        raise DataError(
            f"the chat template of the tokenizer of {name} cannot write the prompt ({reason}); choose "
            f"another prompt ({other}), other data.prompt.template_options, or another model"
        ) from None
    text = text if text.endswith(prompt.opening) else text + prompt.opening
    return array("i", tokenizer.encode(text, add_special_tokens=False))


def filled(template: str, problem: Problem) -> str:
    r"""Returns a template with the problem in it. Unlike str.format it leaves other braces alone."""
    return template.replace(PLACEHOLDER, problem.prompt)
