"""Shows the problems of a run: sizes, what filters remove, prompt lengths, prompts. Trains nothing."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator
from functools import partial
from statistics import median, quantiles
from typing import TYPE_CHECKING, Any

from omegaconf import DictConfig

from bapo_lightning.configuration.compose import resolve
from bapo_lightning.configuration.early import refuse_early, refuse_missing_files
from bapo_lightning.configuration.help import help_text
from bapo_lightning.report.progress.display import displayed_phases
from bapo_lightning.runs.command import end_with, hydra_command
from bapo_lightning.system.errors import BapoLightningError, ConfigError, first_line
from bapo_lightning.system.phases import phase

if TYPE_CHECKING:
    from bapo_lightning.configuration.run_config import RunConfig
    from bapo_lightning.data.problems.selection import Selection
    from bapo_lightning.types import Problem

    Encode = Callable[[Problem], array[int]]

MAX_SHOWN_CHARACTERS = 1000
HELP = ("data", 'data DATA=gsm8k ARGS="+show=3"', "Shows what would be trained on, and trains nothing.")


@hydra_command("train", lambda: help_text(*HELP))
def main(config: DictConfig) -> None:
    """Checks, reads, describes."""
    plain = resolve(config)
    show = plain.pop("show", 1)
    refuse_early(plain, with_rules=False)
    refuse_missing_files(plain)
    with displayed_phases():
        describe(plain, show)


def describe(plain: dict[str, Any], show: Any) -> None:
    """Prints everything, `show` prompts, and `show` removed problems for each reason (`+show=3`)."""
    with phase("loading libraries"):
        from bapo_lightning.configuration.validate import validate
        from bapo_lightning.configuration.wording import value_problem
        from bapo_lightning.data.problems.prompts import contradiction_of
        from bapo_lightning.data.problems.selection import account_lines
        from bapo_lightning.runs.inputs import read_problems
        from bapo_lightning.system.values import CountOrZero

    if fault := value_problem(CountOrZero, "show", show):
        raise ConfigError([f"show={show} {fault}"])
    config = validate(plain, "data")
    rule, limit = config.data.prompt.make(2), config.scale.max_prompt_tokens
    encode, reason = _encoder(config.model.path, rule)
    with phase("reading problems"):
        selection = read_problems(
            config.data, encode or (lambda problem: array("i")), limit, config.scale.validation_problems
        )
    print("\n".join([config.data.name, *account_lines(selection.account)]))
    if encode is None:
        print(f"scale.max_prompt_tokens={limit} was not applied: {reason} (model.path={config.model.path})")
    else:
        lengths = [len(encode(problem)) for problem in selection.train]
        centiles = quantiles(lengths, n=20, method="inclusive") if len(lengths) > 1 else lengths * 19
        print(
            f"prompt tokens: median {median(lengths):.0f}, 95 % up to {centiles[18]:.0f}, longest "
            f"{max(lengths)}; limit {limit}"
        )
        text_of = partial(_text, encode)
        if contradiction := contradiction_of(selection.train, text_of):
            print(f"warning: {contradiction}")
        for refused in _refused(config, selection, encode.args[0]):
            print(f"warning: train would stop: {refused}")
    for problem in selection.train[:: max(1, len(selection.train) // max(1, show))][:show]:
        print(f"\n--- {problem.id}, gold answer {problem.answer!r}")
        if encode is not None:  # as the policy will see it
            print(_shortened(text_of(problem)))
        elif hasattr(rule, "messages"):  # before the tokenizer's template
            for message in rule.messages(problem):
                print(f"{message['role']}: {_shortened(message['content'])}")
        else:
            print(_shortened(problem.prompt))
    for reason, problems in selection.filtered.removed.items():
        for problem in problems[:show]:
            print(f"\n--- removed: {reason}: {problem.id}, gold answer {problem.answer!r}")
            print(_shortened(problem.prompt))


def _encoder(path: str, rule: Any) -> tuple[partial[array[int]] | None, str]:
    # Encodes a problem's prompt; None and the reason if the model's tokenizer cannot.
    from transformers import AutoTokenizer

    from bapo_lightning.modules.policy.folder import model_path
    from bapo_lightning.system.pretrained import read_pretrained
    from bapo_lightning.types import Problem

    try:
        encode = partial(rule, read_pretrained(AutoTokenizer, model_path(path)))
        encode(Problem("", "1+1=", "2"))
    except (OSError, ValueError) as error:
        return None, first_line(error)
    return encode, ""


def _refused(config: RunConfig, selection: Selection, tokenizer: Any) -> Iterator[str]:
    """Reasons that would stop a run with these lengths, or with this reward for these problems."""
    from bapo_lightning.configuration.rank_rules import length_problems
    from bapo_lightning.runs.inputs import judged_sets
    from bapo_lightning.runs.reward_trial import try_reward

    yield from length_problems(config.model.path, config.scale)
    try:
        try_reward(config.reward, judged_sets(config, selection), tokenizer, config.environment is not None)
    except BapoLightningError as error:
        yield str(error)


def _text(encode: partial[array[int]], problem: Problem) -> str:
    """The prompt as the policy gets it, special tokens included."""
    text: str = encode.args[0].decode(encode(problem).tolist())
    return text


def _shortened(text: str) -> str:
    rest = len(text) - MAX_SHOWN_CHARACTERS
    return text if rest <= 0 else f"{text[:MAX_SHOWN_CHARACTERS]} ... ({rest} more characters)"


if __name__ == "__main__":
    end_with(main)
