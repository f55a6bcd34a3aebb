"""Problems that are games of TextArena (pip extra `textarena`), for `games.TextArena`."""

from __future__ import annotations

from typing import Any

from bapo_lightning.data.problems.held_out import Part
from bapo_lightning.extras.textarena.games import Game
from bapo_lightning.system.values import CountOrZero, Size
from bapo_lightning.types import Problem


def textarena_problems(
    game: str, count: Size, split: Part, options: dict[str, Any] | None = None, first: CountOrZero = 0
) -> list[Problem]:
    """Returns `count` deals of a game, whose prompt is its rules and its visible start.

    Even seeds train and odd ones validate, so that the splits share no seed whatever their sizes. A game with
    few starting states has equal ones under different seeds, and some games (TowerOfHanoi, Countdown) start
    the same under every seed.

    Args:
        game: TextArena game for one player, e.g. "Mastermind-v0".
        count: number of deals.
        split: split whose seeds are used.
        options: replace those that the game's name implies, e.g. {"max_turns": 10}.
        first: number of deals of the split to skip.

    Returns:
        Problems without an answer; `metadata` has what the environment deals the game from.

    Raises:
        DataError: textarena is missing, has no such game, or cannot deal it with these options.
    """
    given = dict(options or {})
    name = game + (f"({', '.join(f'{key}={given[key]}' for key in sorted(given))})" if given else "")
    begin = 2 * first + (split == "validation")
    return [
        Problem(f"{name}/{seed}", rules, "", game, {"game": game, "options": given, "seed": seed})
        for seed in range(begin, begin + 2 * count, 2)
        for rules in [Game(game, given, seed).rules]
    ]
