"""Games as they are played without the adapter are the reference; Mastermind has a player that wins."""

import json
import os
import pickle
import random
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import textarena
from tests.configuration.compositions import composed, found
from tests.extras.textarena.mastermind import CODE, CODES, guess_of, next_guess, problem

from bapo_lightning.configuration.targets import Target, target_problems
from bapo_lightning.environments.environment import Turn
from bapo_lightning.extras.textarena.games import FAMILIES, MAX_CHARACTERS, UNREADABLE, Game, TextArena
from bapo_lightning.extras.textarena.problems import textarena_problems
from bapo_lightning.system.errors import DataError
from bapo_lightning.types import Problem, Reply

# Moves that are valid at least at first; of games that draw in mid-game several.
MOVES = {
    "2048-v0-very-easy": ["[up]", "[left]", "[down]", "[right]"] * 5, "Bandit-v0": ["[red]", "[blue]"] * 4,
    "Blackjack-v0": ["[hit]", "[stand]"] * 4, "Countdown-v0": ["[0 1 +]", "[0 1 *]", "nothing"],
    "Crosswords-v0": ["[0 0 e]", "[1 1 a]"], "Cryptarithm-v0": ["[S 9]", "[E 5]", "[M 9]"],
    "FifteenPuzzle-v0": ["[up]", "[left]", "[down]"] * 3,
    "FrozenLake-v0": ["[right]", "[down]", "[left]", "[up]"] * 2,
    "GuessTheNumber-v0": ["[3]", "[12]", "[17]", "[30]"], "LightsOut-v0": ["[0 0]", "[1 1]", "[2 3]"],
    "LogicPuzzle-v0": ["[a b X]", "[a b X]"], "Mastermind-v0": ["[1 2 3 4]", "[2 1 5 6]", "[7]", "[6 5 4 3]"],
    "Minesweeper-v0-small": ["[2 2]", "[0 4]", "[4 0]"], "PegJump-v0": ["[4 1]", "[1 4]", "[2 5]"],
    "RushHour-v0": ["[A+]", "[X+]", "[A-]"], "Secretary-v0": ["[continue]", "[continue]", "[accept]"],
    "Set-v0": ["[1, 2, 3]", "[4, 5, 6]"], "Slitherlink-v0": ["[h 0 0]", "[v 0 0]", "nothing", "nothing"],
    "Sokoban-v0": ["[up]", "[left]", "[down]", "[right]"] * 2, "Sudoku-v0-very-easy": ["[1 1 1]", "[1 2 3]"],
    "ThreeCardMonte-v0": ["[1]"], "TowerOfHanoi-v0": ["[A C]", "[A B]", "[C B]"],
}  # fmt: skip


def answered(played, moves, environment=None, before=None):
    """Replies to moves, until the game is over; each state as a checkpoint would give it back."""
    environment = environment or TextArena()
    state, replies = environment.start(played), []
    for number, move in enumerate(moves):
        if before is not None:
            before()
        replies.append(environment.respond(Turn(played, move, number, False, state)))
        state = json.loads(json.dumps(replies[-1].state))
        if replies[-1].is_done:
            break
    return replies


def won(seed):
    environment, played, transcript = TextArena(), problem(seed=seed, **CODE), ""
    state, replies = environment.start(played), []
    while not replies or not replies[-1].is_done:
        turn = Turn(played, f"I try {next_guess(transcript)}", len(replies), False, state)
        replies.append(environment.respond(turn))
        state, transcript = replies[-1].state, transcript + replies[-1].text
    return replies


def test_a_player_who_thinks_wins():
    for seed in range(5):
        *before, last = won(seed)
        assert last.score == 1.0 and "You have cracked the code" in last.text
        assert len(before) < 10 and {reply.score for reply in before} <= {None}
        assert {(reply.calls, reply.errors, reply.is_void) for reply in [*before, last]} == {(1, 0, False)}


def test_a_player_who_does_not_listen_loses_with_part_of_the_credit():
    *before, last = answered(problem(**CODE), map(guess_of, CODES))
    assert len(before) == 10 and "Turn limit reached" in last.text  # TextArena allows one more than it says
    assert last.is_done and last.score == 0.625


def test_a_reply_has_only_what_is_new():
    first, second = answered(problem(**CODE), ["[1 2 3 4]", "I try [2 1 5 6] now"])
    assert first.text == "Submitted [1 2 3 4]. Feedback: 1 black peg(s), 1 white peg(s)."
    assert second.text == "Submitted [2 1 5 6]. Feedback: 1 black peg(s), 2 white peg(s)."


def test_an_invalid_move_is_warned_of_once():
    moves = ["[1 1 1 1]", "[1 2 3 4]", "no guess", "[1 2 3 4]"]
    warning, valid, again, end = answered(problem(**CODE), moves)
    assert warning.text.startswith("You attempted an invalid move. Reason: Duplicate numbers")
    assert [reply.errors for reply in (warning, valid, again, end)] == [1, 0, 1, 1]
    assert not again.is_done and end.is_done and end.score == 0.375
    assert end.text.startswith("Invalid Move: You have already guessed")


def test_an_explanation_where_the_reward_belongs_counts_nothing():
    _, end = answered(problem("Countdown-v0"), ["nothing", "nothing"])
    assert end.is_done and end.score == 0.0


def test_a_move_that_the_game_breaks_on_leaves_it_as_it_was(monkeypatch):
    first, _ = answered(problem(**CODE), ["[1 2 3 4]", "[2 1 5 6]"])
    mastermind = sys.modules["textarena.envs.Mastermind.env"].MastermindEnv
    real = mastermind.step
    monkeypatch.setattr(mastermind, "step", lambda self, text: 1 / 0 if text == "?" else real(self, text))
    replies = answered(problem(**CODE), ["?", "[1 2 3 4]", "?"])
    broken = Reply(UNREADABLE, state=[], calls=1, errors=1)
    assert replies == [broken, first, Reply(UNREADABLE, state=["[1 2 3 4]"], calls=1, errors=1)]


def test_the_last_turn_is_played_and_without_an_end_there_is_no_score():
    environment, played = TextArena(), problem(**CODE)
    unfinished = environment.respond(Turn(played, "[1 2 3 4]", 0, True, []))
    assert not unfinished.is_done and unfinished.score is None
    moves = won(3)[-1].state
    assert environment.respond(Turn(played, moves[-1], 9, True, moves[:-1])).score == 1.0


@pytest.mark.parametrize(("move", "text", "played", "is_void"), [
    (None, "First [1 2 3 4], no, [2 1 5 6].", "First [1 2 3 4], no, [2 1 5 6].", False),
    (r"\[[^\[\]]*\]", "First [1 2 3 4], no, [2 1 5 6].", "[2 1 5 6]", False),
    (r"<guess>(.*?)</guess>", "[1 2 3 4] <guess>\n[2 1 5 6]</guess>", "\n[2 1 5 6]", False),
    (r"\[[^\[\]]*\]", "I do not know", "", True),
    (None, " \n", " \n", True),
    (None, "[2 1 5 6]" * 1000, ("[2 1 5 6]" * 1000)[-MAX_CHARACTERS:], False),
])  # fmt: skip
def test_the_move_of_a_turn(move, text, played, is_void):
    (reply,) = answered(problem(**CODE), [text], TextArena(move))
    assert reply.state == [played] and reply.is_void is is_void and reply.errors == int(is_void)


def test_a_pattern_that_cannot_be_read_is_refused():
    node = {"_target_": "bapo_lightning.extras.textarena.games.TextArena", "move": "["}
    (told,) = target_problems(node, "environment.answers")
    assert told.startswith("environment.answers.move=[ is not a regular expression")
    with pytest.raises(ValueError, match="null gives the game every word"):
        TextArena("[")


def plainly_played(game, seed, moves):
    """The same game as TextArena plays it by itself, drawing from the process's generator."""
    before = random.getstate()
    env = textarena.make(f"{game}-raw")
    env.reset(num_players=1, seed=seed)
    env.get_observation()
    seen = []
    for move in moves:
        is_done, _ = env.step(move)
        own = textarena.ObservationType.PLAYER_ACTION
        said = [text for _, text, kind in env.get_observation()[1] if kind is not own and text != 0]
        reason = [env.close()[1][0]["reason"]] if is_done else []
        seen.append(("\n".join(filter(None, said + reason)), is_done))
        if is_done:
            break
    random.setstate(before)
    return seen


@pytest.mark.parametrize("game", MOVES)
def test_a_replayed_game_is_the_one_that_was_kept(game):
    for seed in (1, 2):
        replies = answered(problem(game, seed), MOVES[game], before=lambda: random.seed(7))
        expected = plainly_played(game, seed, MOVES[game])
        assert [(reply.text, reply.is_done) for reply in replies] == expected


def test_every_family_of_games_is_tried():
    assert {game.partition("-v")[0] for game in MOVES} == FAMILIES


def test_conversations_in_threads_are_as_they_are_alone():
    games = ["2048-v0-very-easy", "Bandit-v0", "Blackjack-v0", "Minesweeper-v0-small"]
    played = [(problem(game, seed), MOVES[game]) for game in games for seed in range(6)]
    alone = [answered(*each) for each in played]
    assert sum(map(len, alone)) > 100
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(lambda each: answered(*each), played * 3)) == alone * 3


def test_nobody_else_sees_the_numbers_that_games_draw():
    random.seed(11)
    state, is_over, changes = random.getstate(), threading.Event(), []

    def watch():
        while not is_over.is_set():
            changes.extend([1] * (random.getstate() != state))

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        for seed in range(10):
            answered(problem("2048-v0-very-easy", 100 + seed), MOVES["2048-v0-very-easy"])
    finally:
        is_over.set()
        watcher.join()
    assert changes == [] and random.getstate() == state


def test_games_print_nothing(capsys):
    answered(problem("RushHour-v0", 5), ["[A+]"])
    answered(problem("LogicPuzzle-v0", 5), ["nothing", "nothing"])
    assert capsys.readouterr().out == ""


def test_games_are_dealt_alike_in_every_process():
    code = "import sys, zlib; from bapo_lightning.extras.textarena.games import Game\n"
    code += "print(zlib.crc32(''.join(Game(name, {}, 5).rules for name in sys.argv[1:]).encode()))"
    slow = ("RushHour", "Set", "Sokoban")  # seconds
    names = [name for name in MOVES if not name.startswith(slow)]
    command, printed = [sys.executable, "-c", code, *names], []
    for seed in ("1", "2"):
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        printed.append(subprocess.check_output(command, env=environment, text=True))
    assert printed[0] == printed[1] != ""


def test_problems_are_deals_that_the_splits_do_not_share():
    train = textarena_problems("2048-v0-easy", 30, "train")
    held_out = textarena_problems("2048-v0-easy", 20, "validation", first=5)
    assert [item.id for item in train[:2]] == ["2048-v0-easy/0", "2048-v0-easy/2"]
    assert held_out[0].metadata == {"game": "2048-v0-easy", "options": {}, "seed": 11}
    assert len({item.id for item in train + held_out}) == 50
    assert len({item.prompt for item in train}) > 20
    assert train == textarena_problems("2048-v0-easy", 30, "train")
    assert train[3:5] == textarena_problems("2048-v0-easy", 2, "train", first=3)


def test_a_problem_shows_the_rules_with_its_options():
    (first,) = textarena_problems("Mastermind-v0", 1, "train", CODE)
    assert first.id == "Mastermind-v0(code_length=4, max_turns=10, num_numbers=6)/0"
    assert (first.answer, first.source) == ("", "Mastermind-v0")
    assert "You have 10 turns to guess the code." in first.prompt
    assert hash(first) == hash(pickle.loads(pickle.dumps(first)))
    assert json.loads(json.dumps(first.metadata)) == first.metadata
    assert TextArena().start(first) == []


@pytest.mark.parametrize(("game", "options", "words"), [
    ("Mastermnd-v0", {}, r"game=Mastermnd-v0 is not a game of TextArena; did you mean Mastermind-v0\?"),
    ("TicTacToe-v0", {}, "game=TicTacToe-v0 is not a game of TextArena for one player"),
    ("Wordle-v0", {}, "downloads the word lists of NLTK, which needs the network"),
    ("TwentyQuestions-v0", {}, "asks a model at OpenRouter about every move, which needs the network"),
    ("Mastermind-v0", {"length": 4}, "with options={'length': 4} .*unexpected keyword argument 'length'"),
    ("Mastermind-v0", {"code_length": 9}, "TextArena cannot deal game=Mastermind-v0 .*Sample larger"),
])  # fmt: skip
def test_what_cannot_be_dealt_is_one_clear_error(game, options, words):
    with pytest.raises(DataError, match=words):
        textarena_problems(game, 1, "train", options)


def test_a_missing_package_names_the_command_that_installs_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "textarena", None)
    with pytest.raises(DataError, match=r"\.venv/bin/python -m pip install -e \"\.\[textarena\]\""):
        Game("Secretary-v0-long", {}, 0)


def test_a_problem_that_is_no_game_is_refused():
    with pytest.raises(DataError, match="problem 7 is not a game of TextArena"):
        TextArena().start(Problem("7", "1+1", "2"))


def test_the_files_go_together():
    choices = ["environment=textarena", "data=textarena_mastermind", "reward=environment"]
    model = "experiment=qwen2.5_0.5b_gsm8k"  # only its configuration
    assert found(model, *choices, "scale.max_feedback_tokens=2000") == []
    config = composed(*choices)
    data = config["data"]
    data["train"]["count"] = data["validation"]["mastermind"]["count"] = 3
    train, held_out = (Target(node).make() for node in (data["train"], data["validation"]["mastermind"]))
    assert [item.metadata["seed"] for item in train + held_out] == [0, 2, 4, 1, 3, 5]
    environment = Target(config["environment"]["answers"]).make()
    (reply,) = answered(train[0], ["Not [1 2 3 4] but [2 1 5 6]"], environment)
    assert reply.state == ["[2 1 5 6]"] and environment.is_pure
