"""A player of TextArena's Mastermind, who reads what was said and guesses what agrees with it."""

import re
from itertools import permutations

from bapo_lightning.types import Problem

CODE = {"code_length": 4, "num_numbers": 6, "max_turns": 10}
CODES = list(permutations(range(1, 7), 4))


def problem(game="Mastermind-v0", seed=3, **options):
    return Problem(f"{game}/{seed}", "", "", game, {"game": game, "options": options, "seed": seed})


def guess_of(code):
    return f"[{' '.join(map(str, code))}]"


def pegs(code, guess):
    black = sum(a == b for a, b in zip(code, guess, strict=True))
    return black, len(set(code) & set(guess)) - black


def next_guess(transcript):
    """The first code that agrees with all that was said."""
    said = re.findall(r"Submitted \[([\d ]+)\]\. Feedback: (\d) black peg\(s\), (\d) white", transcript)
    heard = [(tuple(map(int, guess.split())), (int(black), int(white))) for guess, black, white in said]
    fits = (code for code in CODES if all(pegs(code, guess) == answer for guess, answer in heard))
    return guess_of(next(fits))
