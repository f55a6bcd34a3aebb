"""How a problem becomes the token ids that the policy continues (key `data.prompt`, group `data/prompt`)."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from bapo_lightning.errors import DataError
from bapo_lightning.types import Problem

# transformers tokenizer, problem -> token ids (typecode "i") of its prompt
PromptRule = Callable[[Any, Problem], "array[int]"]
Encode = Callable[[Problem], "array[int]"]  # problem -> token ids of its prompt

PLACEHOLDER = "{problem}"


def template_problems(options: Mapping[str, Any]) -> Iterator[str]:
    """Yields what is wrong with a template that never shows the problem."""
    if PLACEHOLDER not in (template := options.get("template", PLACEHOLDER)):
        yield (
            f"template={template!r} never shows the problem; write {PLACEHOLDER} where its text goes, "
            f"e.g. {PLACEHOLDER!r}"
        )


@dataclass(frozen=True, slots=True)
class PlainPrompt:
    """The problem's text in a template, without special tokens: for models without a chat format."""

    problems = staticmethod(template_problems)
    template: str = PLACEHOLDER  # every {problem} in it is replaced by the problem's text

    def text(self, problem: Problem) -> str:
        """Returns the text that the policy continues."""
        return filled(self.template, problem)

    def __call__(self, tokenizer: Any, problem: Problem) -> array[int]:
        """Returns the token ids of the prompt."""
        return array("i", tokenizer.encode(self.text(problem), add_special_tokens=False))


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

    chat: ChatPrompt
    plain: PlainPrompt

    def __call__(self, tokenizer: Any, problem: Problem) -> array[int]:
        """Returns the token ids of the prompt."""
        return (self.chat if tokenizer.chat_template else self.plain)(tokenizer, problem)


def rendered(
    tokenizer: Any, messages: list[dict[str, str]], prompt: ChatPrompt | MessagesPrompt
) -> array[int]:
    """Returns the token ids of chat messages, up to where the assistant goes on. Raises DataError without a
    chat template.
    """
    if not tokenizer.chat_template:
        raise DataError(
            f"data.prompt={type(prompt).__name__} needs a chat template, and the tokenizer of "
            f"{tokenizer.name_or_path or 'the model'} has none; choose an instruction-tuned model, or give "
            "it the problem's bare text: data/prompt=plain"
        )
    options = {"add_generation_prompt": True, **prompt.template_options}
    if prompt.opening is None:
        ids = tokenizer.apply_chat_template(messages, tokenize=True, return_dict=False, **options)
        return array("i", ids)
    text = tokenizer.apply_chat_template(messages, tokenize=False, **options)
    text = text if text.endswith(prompt.opening) else text + prompt.opening
    return array("i", tokenizer.encode(text, add_special_tokens=False))


def filled(template: str, problem: Problem) -> str:
    r"""Returns a template with the problem in it. Unlike str.format it leaves other braces alone."""
    return template.replace(PLACEHOLDER, problem.prompt)
