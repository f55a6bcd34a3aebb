"""TextArena's games for one player (pip extra `textarena`), played by a policy move by move.

    problem (game, options, seed) -> its rules -> move -> the game's reply -> move -> ... -> reward

A game is dealt from the seed and its moves are replayed whenever the policy makes another one, so that
nothing of a conversation is kept between turns. TextArena also draws from Python's global generator in
mid-game, and would reseed the process; here each game has its own generator, which affects no other thread.
"""

from __future__ import annotations

import json
import math
import pickle
import random
import re
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, lru_cache
from importlib import import_module
from numbers import Real
from types import ModuleType
from typing import Any

from bapo_lightning.environments.call_formats import last_match, pattern_problem
from bapo_lightning.environments.environment import Turn
from bapo_lightning.system.errors import DataError, suggestion
from bapo_lightning.types import Problem, Reply

COMMAND = '.venv/bin/python -m pip install -e ".[textarena]"'
UNREADABLE = "The game cannot read this move. Please submit another one."

MAX_CHARACTERS = 4000  # of a move: some games search it in quadratic time

# Families of games for one player that need no network and deal the same in every process.
FAMILIES = frozenset({
    "2048", "Bandit", "Blackjack", "Countdown", "Crosswords", "Cryptarithm", "FifteenPuzzle", "FrozenLake",
    "GuessTheNumber", "LightsOut", "LogicPuzzle", "Mastermind", "Minesweeper", "PegJump", "RushHour",
    "Secretary", "Set", "Slitherlink", "Sokoban", "Sudoku", "ThreeCardMonte", "TowerOfHanoi",
})  # fmt: skip
NEED_THE_NETWORK = {
    **dict.fromkeys(("Hangman", "WordLadder", "WordSearch", "Wordle"), "downloads the word lists of NLTK"),
    **dict.fromkeys(("GuessWho", "TwentyQuestions"), "asks a model at OpenRouter about every move"),
}


def textarena() -> ModuleType:
    """Returns the library; raises DataError with the command that installs it if it is missing."""
    try:
        return import_module("textarena")
    except ImportError as error:
        raise DataError(f"textarena cannot be imported ({error}); {COMMAND}") from None


@dataclass(frozen=True, slots=True)
class Move:
    """Outcome of a move."""

    text: str  # the game's message; at its end, why it ended
    is_done: bool
    is_invalid: bool  # against the rules: a warning, or the end of the game
    score: float | None  # TextArena's reward, at the end


class Game:
    """One game in progress, which only one thread may play.

    `options`, such as {"max_turns": 10}, replace those implied by the name, such as "Mastermind-v0". Raises
    DataError if textarena is missing, has no such game, or cannot deal it with these options.
    """

    def __init__(self, name: str, options: Mapping[str, Any], seed: int) -> None:
        self._env, self._dice = pickle.loads(_dealt(name, json.dumps(options, sort_keys=True), seed))
        self.rules = self._news()

    def play(self, move: str) -> Move:
        """Makes a move. Raises whatever the game raises on an unforeseen text."""
        with _drawing_from(self._dice):
            is_done, _ = self._env.step(move)
        rewards, (info, *_) = self._env.state.rewards, self._env.state.game_info.values()
        is_invalid = bool(info["invalid_move"]) or self._env.state.error_count > 0
        lines = [self._news(), (info.get("reason") or "") if is_done else ""]
        score = _number(rewards[0]) if is_done else None
        return Move("\n".join(filter(None, lines)), bool(is_done), is_invalid, score)

    def _news(self) -> str:
        """Text of the game since the last time, without the player's own words."""
        action = textarena().ObservationType.PLAYER_ACTION
        _, messages = self._env.get_observation()
        # Some games file these under a wrong kind, with a number for the text.
        return "\n".join(text for _, text, kind in messages if kind is not action and isinstance(text, str))


class TextArena:
    """Environment that plays the game of a problem (`textarena.problems`) with the policy.

    The conversation ends with the game, and its score is TextArena's reward: 1 for a win and, in most games,
    a share of it for a position near to one. A conversation that a limit ends earlier has no score.

    Args:
        move: regular expression; the last match in a turn is what the game gets, its first group if it has
            one, and a turn without a match is an empty move. None: the game gets the whole turn.
            The game gets the last 4000 characters of a longer text.
    """

    is_pure = True

    def __init__(self, move: str | None = None) -> None:
        if problems := list(self.problems({"move": move})):
            raise ValueError("; ".join(problems))
        self._move = None if move is None else re.compile(move, re.DOTALL)

    @staticmethod
    def problems(options: Mapping[str, Any]) -> Iterator[str]:
        """Yields what is wrong with the options of the constructor."""
        if problem := pattern_problem("move", options["move"], "gives the game every word"):
            yield problem

    def start(self, problem: Problem) -> list[str]:
        """Returns the moves so far."""
        if not {"game", "options", "seed"} <= set(problem.metadata):
            raise DataError(
                f"problem {problem.id} is not a game of TextArena; write environment=none, or data whose "
                "_target_ is bapo_lightning.extras.textarena.problems.textarena_problems"
            )
        return []

    def respond(self, turn: Turn) -> Reply:
        """Returns the game's reply to a move; at the last turn, too, as the move may end the game."""
        dealt = turn.problem.metadata
        game = Game(dealt["game"], dealt["options"], dealt["seed"])
        for earlier in turn.state:
            game.play(earlier)
        text = last_match(self._move, turn.text)[-MAX_CHARACTERS:]
        try:
            move = game.play(text)
        except Exception:  # foreign code on text that the policy made up: the game stays unchanged
            return Reply(UNREADABLE, state=turn.state, calls=1, errors=1, is_void=not text.strip())
        return Reply(
            move.text,
            is_done=move.is_done,
            score=move.score,
            state=[*turn.state, text],
            calls=1,
            errors=int(move.is_invalid),
            is_void=not text.strip(),
        )


def _number(reward: Any) -> float:
    """A reward as a number; some games put an explanation there if an invalid move ends them."""
    return float(reward) if isinstance(reward, Real) and math.isfinite(reward) else 0.0


@lru_cache(maxsize=1024)  # some take seconds to deal, and every turn of every response starts with it
def _dealt(name: str, options: str, seed: int) -> bytes:
    make = _maker(name)
    dice, given = random.Random(seed), json.loads(options)
    try:
        with _drawing_from(dice):
            env = make(f"{name}-raw", **given)
            env.reset(num_players=1, seed=seed)
    except Exception as error:  # foreign code on options that the user made up
        raise DataError(
            f"TextArena cannot deal game={name} with options={given} ({type(error).__name__}: {error}); "
            "write other options"
        ) from error
    return pickle.dumps((env, dice))


@cache
def _maker(name: str) -> Any:
    library = textarena()
    registry = import_module("textarena.envs.registration").ENV_REGISTRY
    family = name.partition("-v")[0]
    if name in registry and family in NEED_THE_NETWORK:
        reason = NEED_THE_NETWORK[family]
        raise DataError(f"game={name} {reason}, which needs the network; write another game")
    known = [other.removesuffix("-raw") for other in registry if other.endswith("-raw")]
    known = [other for other in known if other.partition("-v")[0] in FAMILIES]
    if name not in known:
        what = "game of TextArena for one player" if name in registry else "game of TextArena"
        raise DataError(f"game={name} is not a {what}; {suggestion(name, known)}")
    import_module(registry[name].entry_point.partition(":")[0])
    _give_dice()
    return library.make


class _Dice(threading.local):
    """Replaces the module `random` in TextArena's modules: each thread draws from its own game."""

    generator: random.Random | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self.generator if hasattr(self.generator, name) else random, name)


_DICE = _Dice()


def _give_dice() -> None:
    """Gives TextArena's modules dice, and prevents them from printing."""
    for name, module in list(sys.modules.items()):
        if name.startswith("textarena.") and vars(module).get("random") is random:
            vars(module)["random"] = _DICE
            vars(module)["print"] = lambda *_, **__: None


@contextmanager
def _drawing_from(dice: random.Random) -> Iterator[None]:
    before, _DICE.generator = _DICE.generator, dice
    try:
        yield
    finally:
        _DICE.generator = before
