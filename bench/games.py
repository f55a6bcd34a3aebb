"""Games of TextArena: what a turn costs, by the moves before it, and what dealing a game costs.

python bench/games.py
"""

from __future__ import annotations

from functools import partial
from itertools import permutations

from measuring import Spread, bench_parser, turn, write_json

from bapo_lightning.environments.environment import Turn
from bapo_lightning.extras.textarena.games import Game, TextArena
from bapo_lightning.types import Problem

MOVES = (0, 10, 20, 50, 300)  # before the turn
DEALT = ("Mastermind-v0", "2048-v0", "Minesweeper-v0", "Sudoku-v0", "Set-v0", "Sokoban-v0", "RushHour-v0")
SLOW = ("Sudoku-v0-hard", "Sokoban-v0-medium")


def main() -> None:
    parser = bench_parser(__doc__, repeats=100, deals=10)
    parser.add_argument("--slow", action="store_true", help="also deal the games that take many seconds")
    options = parser.parse_args()
    turns = {str(moves): turn_times(moves, options.repeats) for moves in MOVES}
    print(f"a turn of Mastermind-v0, CPU time of {options.repeats}, median (least .. most)")
    for moves, spread in turns.items():
        print(f"  after {moves:>3} moves     {spread.text('ms', 1e3)}")
    print(f"a game's first deal, CPU time of {options.deals} seeds, median (least .. most)")
    deals = {}
    for name in DEALT + SLOW * options.slow:
        deals[name] = deal_times(name, options.deals)
        print(f"  {name:<18} {deals[name].text('ms', 1e3)}")
    write_json(options.json, {"turns": turns, "deals": deals})


def turn_times(moves: int, repeats: int) -> Spread:
    played = Problem("", "", "", metadata={"game": "Mastermind-v0", "options": {"max_turns": 500}, "seed": 3})
    codes = [f"[{' '.join(map(str, code))}]" for code in permutations(range(1, 7), 4)]
    codes.remove(next(code for code in codes if wins(played, code)))
    environment = TextArena()
    last = Turn(played, codes[moves], moves, False, codes[:moves])
    return Spread.of([turn(lambda: environment.respond(last)).cpu for _ in range(repeats)])


def wins(played: Problem, code: str) -> bool:
    return TextArena().respond(Turn(played, code, 0, False, [])).is_done


def deal_times(name: str, deals: int) -> Spread:
    """Times the deals of seeds that were not dealt before, but for the first, which loads the game."""
    taken = [turn(partial(Game, name, {}, seed)).cpu for seed in range(deals + 1)]
    return Spread.of(taken[1:])


if __name__ == "__main__":
    main()
