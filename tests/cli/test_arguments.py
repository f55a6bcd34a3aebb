"""No argument of a command with its own options ends it in a traceback: every option x odd values."""

import argparse
import random
from importlib import import_module

import pytest
from tests.configuration import small_commands
from tests.report.synthetic_runs import synthetic_row, write_run

from bapo_lightning.__main__ import COMMANDS, module_of
from bapo_lightning.report import style

SAMPLED, MANY = 6, 25  # values that are tried
VALUES = [
    "", " ", "gone", "gone/below", ".", "..", "/", "file", "file/below", "runs", "runs/one", "nan", "inf",
    "-1", "0", "1e-300", "1e300", "1e400", "9" * 400, "1_0", "x" * 300, "\udcff", "\x1b[2J", "[", "**", "~",
    "-x", "{}", "wandb:", "wandb:a/b/c",
]  # fmt: skip


class Parsed(Exception):
    """Raised with the parser in place of parsing."""


def own_parser(main, monkeypatch):
    """The parser of a command; None of one that Hydra parses."""

    def stop(parser, *arguments):
        raise Parsed(parser)

    with monkeypatch.context() as patched:
        patched.setattr(argparse.ArgumentParser, "parse_args", stop)
        try:
            main([])
        except Parsed as found:
            return found.args[0]
        except TypeError:  # it takes no arguments
            return None


def with_own_parsers(monkeypatch):
    mains = {name: import_module(module_of(name)).main for name in COMMANDS}
    parsers = {name: own_parser(main, monkeypatch) for name, main in mains.items()}
    return {name: (mains[name], parser) for name, parser in parsers.items() if parser is not None}


def attempts(parser):
    """Command lines, each with one value of one option, and the others as they should be."""
    actions = [action for action in parser._actions if not isinstance(action, argparse._HelpAction)]
    needed = {
        action.dest: [action.option_strings[0], "out"]
        if action.option_strings
        else ["runs" if action.nargs else "runs/one"]
        for action in actions
        if action.required
    }
    for action in actions:
        rest = [text for name, texts in needed.items() if name != action.dest for text in texts]
        for value in VALUES if action.nargs != 0 else ():
            yield [*rest, f"{action.option_strings[-1]}={value}" if action.option_strings else value]
        if action.nargs == 0:
            yield [*[text for texts in needed.values() for text in texts], action.option_strings[-1]]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    for name, seed in (("one", 0), ("two", 1)):
        rows = [synthetic_row(step, 6, "bapo", random.Random(seed)) for step in range(6)]
        write_run(tmp_path / "runs" / name, rows, seed=seed)
    (tmp_path / "file").write_text("x")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(style, "save_png", lambda figure, path: path)


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("count", [SAMPLED, pytest.param(MANY, marks=pytest.mark.slow)])
def test_no_value_of_an_argument_ends_in_a_traceback(count, monkeypatch, capsys):
    found, commands = [], with_own_parsers(monkeypatch)
    assert commands.keys() >= {"compare", "view", "record", "export", "eval-table"}
    for name, (main, parser) in commands.items():
        tried = list(attempts(parser))
        for line in random.Random(name).sample(tried, min(count, len(tried))):
            try:
                code = main(line)
            except SystemExit as ended:
                code = ended.code
            except BaseException as error:
                found.append(f"{name} {line}: {type(error).__name__}: {error}")
                continue
            told = capsys.readouterr().err
            if code not in (0, 1, 2) or (code and "error: " not in told):
                found.append(f"{name} {line}: ended with {code} and {told}")
    assert found == [], "\n".join(found)


def test_every_command_is_tried_here_or_by_make_fuzz(monkeypatch):
    assert {"train", *with_own_parsers(monkeypatch), *small_commands.COMMANDS} >= COMMANDS.keys()
