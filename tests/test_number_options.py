"""Every option of any parser that is a number refuses what is none in one line that names it."""

import argparse
import runpy
import sys
from contextlib import suppress
from pathlib import Path

import pytest
from tests.cli.test_arguments import Parsed

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ("src", "bench", "scripts", "studies", "examples", "tests")
WRONG = ("-1", "nan", "1e30", "x")


def made_parsers():
    """Files that are commands, and make a parser."""
    made = ("ArgumentParser(", "bench_parser(", "parser_of(", "table_parser(")
    for file in (file for folder in FOLDERS for file in sorted((ROOT / folder).rglob("*.py"))):
        text = file.read_text(encoding="utf-8")
        if '\nif __name__ == "__main__":' in text and any(name in text for name in made):
            yield file.relative_to(ROOT)


def parser_in(file, monkeypatch):
    def stop(parser, *arguments):
        raise Parsed(parser)

    monkeypatch.setattr(argparse.ArgumentParser, "parse_args", stop)
    monkeypatch.setattr(sys, "argv", [str(file)])
    with pytest.raises(Parsed) as found:
        runpy.run_path(str(ROOT / file), run_name="__main__")
    monkeypatch.undo()
    return found.value.args[0]


def is_number(action):
    """Whether the option takes numbers and nothing else: one that reads JSON takes both."""
    return (
        action.type is not None and isinstance(read(action, "1"), int | float) and read(action, "{}") is None
    )


def read(action, text):
    with suppress(ValueError, argparse.ArgumentTypeError):
        return action.type(text)


@pytest.mark.parametrize("file", [*made_parsers()], ids=str)
def test_no_number_of_any_parser_is_taken_unseen(file, monkeypatch, capsys):
    parser = parser_in(file, monkeypatch)
    taken = []
    for action in filter(is_number, parser._actions):
        option = action.option_strings[-1]
        times = action.nargs if isinstance(action.nargs, int) else 1
        for value in WRONG:
            with suppress(SystemExit):
                parser.parse_known_args([option, *[value] * times])
            if f"error: argument {option}: {value} " not in (told := capsys.readouterr().err):
                taken.append(f"{option} {value}: {told}")
    assert taken == [], "\n".join(taken)
