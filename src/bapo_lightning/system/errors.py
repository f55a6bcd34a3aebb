"""Errors that a user can meet. Each message says what was expected and found, and what to do instead."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

_MANY = 12  # options; more are not listed next to the one that is meant
# Exceptions of the user's own code: an imported script may exit, or parse the command line.
FOREIGN = (Exception, SystemExit)


class BapoLightningError(Exception):
    """Root of every error this package raises on purpose."""


class ConfigError(BapoLightningError, ValueError):
    """The configuration cannot work. Holds every problem found, to show them all at once."""

    def __init__(self, problems: Sequence[str]) -> None:
        self.problems = tuple(problems)
        super().__init__(self.problems)

    def __str__(self) -> str:
        count = len(self.problems)
        lines = "\n".join(f"  {number}. {text}" for number, text in enumerate(self.problems, 1))
        return f"the configuration has {self._least}{count} problem{'s' if count != 1 else ''}:\n{lines}"

    _least = ""


class FirstConfigError(ConfigError):
    """The configuration cannot be composed. Hydra stops at the first problem; there may be more."""

    _least = "at least "


class LaunchError(ConfigError):
    """The variables of this process give it no place among the ranks of a run, so no rank speaks for all."""


class MachineError(ConfigError):
    """This machine does not have what a run needs. Holds what it needs and finds, what to do instead, and the
    bytes planned for its fullest GPU, 0 if they are not known.
    """

    def __init__(self, name: str, needs: Sequence[str], advice: Sequence[str], planned: float = 0) -> None:
        super().__init__(needs)
        self.name, self.advice, self.planned_bytes = name, tuple(advice), planned
        self.args = (name, self.problems, self.advice, planned)

    def __str__(self) -> str:
        lines = [f"{number}. {text}" for number, text in enumerate(self.problems, 1)]
        return "\n  ".join([f"{self.name} cannot run on this machine:", *lines, *self.advice])


class DataError(BapoLightningError, ValueError):
    """A data set, a problem or a model folder is missing, corrupt or different from its declaration."""


class StaleDataError(BapoLightningError, RuntimeError):
    """A token older than the bound reached the trainer, or one from a version that does not exist yet."""


class EngineError(BapoLightningError, RuntimeError):
    """A rollout engine failed, or it does not hold the weights that it claims to hold."""


class RewardError(BapoLightningError, RuntimeError):
    """Answers cannot be judged: the verifier's processes cannot be started."""


class EnvironmentFault(BapoLightningError, RuntimeError):
    """An environment could not answer a turn; mistakes of the policy become feedback instead."""


class TrainingError(BapoLightningError, RuntimeError):
    """Training cannot continue, for example after too many non-finite gradients in a row."""


class CheckpointError(BapoLightningError, RuntimeError):
    """A checkpoint is torn or corrupt, or a run cannot continue from it."""


class DiskFull(BapoLightningError, OSError):
    """A file could not be written because the disk is full."""


class RankError(BapoLightningError, RuntimeError):
    """One of several ranks failed, so the others cannot continue."""


class RankLost(RankError):
    """The connection to another rank broke: its process is gone."""


@dataclass(frozen=True)
class Outcome:
    """Result of work in another process."""

    value: Any = None
    error: BapoLightningError | None = None

    def result(self) -> Any:
        """The value. Raises the error if there is one."""
        if self.error is not None:
            raise self.error
        return self.value


def outcome_of(
    work: Callable[[], Any], message: str, kind: type[BapoLightningError] = EngineError, traced: bool = True
) -> Outcome:
    """Value or error of `work`; a foreign error, which may not be picklable, becomes one of `kind` with its
    text in `message`. Its traceback is printed if `traced`; the start of an engine, which fails for a user's
    wrong options, is not traced.
    """
    try:
        return Outcome(work())
    except BapoLightningError as error:
        return Outcome(error=error)
    except Exception as error:
        if traced:
            traceback.print_exc()
        return Outcome(error=kind(message.format(in_words(error))))


def first_line(error: BaseException) -> str:
    """First non-empty line of an error's message, or else its type."""
    return next(iter(str(error).strip().splitlines()), "") or type(error).__name__


def last_line(error: BaseException) -> str:
    """Last non-empty line of an error's message, or its type: wrappers put their own words first."""
    return next(iter(str(error).strip().splitlines()[::-1]), "") or type(error).__name__


def in_words(error: BaseException) -> str:
    """Type and message of an error; an `assert` and an exit may have no message."""
    return f"{type(error).__name__}: {error}".removesuffix(": ")


def pass_stops(error: BaseException) -> None:
    """Raises a stop of a signal or of a library again, but not an exit of the user's code."""
    if isinstance(error, SystemExit) and type(error) is not SystemExit:
        raise error


@contextmanager
def exits_refused() -> Iterator[None]:
    """Context of a command that treats an exit of the user's code as an error, since its exit code would
    report success. Raises BapoLightningError with the place of the exit.
    """
    try:
        yield
    except SystemExit as error:
        pass_stops(error)
        place = traceback.extract_tb(error.__traceback__)[-1]
        raise BapoLightningError(
            f"{place.filename}, line {place.lineno} ended the process ({in_words(error)}); return or raise "
            'an error there, and put what a script does behind `if __name__ == "__main__":`'
        ) from error


def nearest(given: str, options: Iterable[str], count: int = 1) -> list[str]:
    """The options that `given` most likely means, those that differ only in case first; never `given`."""
    by_fold = {option.casefold(): option for option in options if option != given}
    near = get_close_matches(given.casefold(), by_fold, max(count, 3))
    # Swapped letters are likelier than a wrong letter: gpro is grpo.
    near.sort(key=lambda name: sorted(name) != sorted(given.casefold()))
    near.sort(key=lambda name: name != given.casefold())
    return [by_fold[name] for name in near[:count]]


def suggestion(option: str, options: Sequence[str]) -> str:
    """The end of a sentence about an unknown `option`: the one that is meant, and all options if few."""
    near = nearest(option, options)
    if near and len(options) > _MANY:
        return f"did you mean {near[0]}?"
    return f"{f'did you mean {near[0]}? ' if near else ''}it takes {', '.join(options) or 'none'}"
