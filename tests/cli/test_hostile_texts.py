"""No command passes on what would control a terminal: from its arguments, data, models, files of runs."""

import csv
import io
import json
import random
import sys
import unicodedata
from subprocess import PIPE, Popen, run

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.table import Table
from tests.commands import run_command, train
from tests.report.progress.test_display import terminal  # noqa: F401
from tests.report.synthetic_runs import synthetic_row, write_run

from bapo_lightning.__main__ import COMMANDS, module_of
from bapo_lightning.report.progress.display import Place, shown
from bapo_lightning.report.progress.terminal import Terminal
from bapo_lightning.system.printable import PrintableStream, printable
from bapo_lightning.tools.commands.compare import main as compare
from bapo_lightning.tools.commands.record import main as record

HOSTILE = "n\x1b]0;PWNED\x07\x1b[2J\x1b[1A\x9b2Kme\r\u202egnp\u2066\x7f\x08"
# Arguments without which a command says nothing of the others.
NEEDED = {
    "record": ["--output", "file"], "eval": ["checkpoint=gone"], "export": ["folder"], "probe": ["folder"],
}  # fmt: skip
# As of the Unicode standard, not of the code.
TURNS = {"LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI"}


def controls(text):
    return {
        letter
        for letter in text
        if (unicodedata.category(letter) in ("Cc", "Cs") and letter not in "\n\t")
        or unicodedata.bidirectional(letter) in TURNS
        or letter in "\N{LEFT-TO-RIGHT MARK}\N{RIGHT-TO-LEFT MARK}\N{ARABIC LETTER MARK}"
    }


@given(st.text() | st.text(st.sampled_from(HOSTILE + "\ud800\u2029")))
def test_everything_printable_stays_and_nothing_else(text):
    shown = printable(text)
    assert not controls(shown)
    shown.encode()
    if not controls(text):
        assert shown == text


def test_each_character_that_controls_has_another():
    codes = [chr(code) for code in range(sys.maxunicode + 1)]
    assert [code for code in codes if code != "\r" and len(printable(code)) != 1] == []
    assert controls("".join(map(printable, codes))) == set()


def test_a_console_writes_escapes_of_its_own_alone(monkeypatch):
    below = io.StringIO()
    monkeypatch.setattr(sys, "stdout", PrintableStream(below))
    table = Table(title=HOSTILE)
    table.add_column(HOSTILE, style="red")
    table.add_row(HOSTILE)
    Terminal(color_system=None).print(table)
    assert "PWNED" in below.getvalue() and not controls(below.getvalue())
    Terminal(force_terminal=True, color_system="standard").print("text", style="red")
    assert below.getvalue().endswith("\x1b[31mtext\x1b[0m\n")


def test_a_reader_that_leaves_ends_no_command():
    script = "from bapo_lightning.system.printable import print_printable, say\nprint_printable()\n"
    script += "for _ in range(9): say('line ' * 9999)\nraise SystemExit('done')"
    with Popen([sys.executable, "-c", script], stdout=PIPE, stderr=PIPE) as command:
        command.stdout.close()
        assert (command.stderr.read(), command.wait(60)) == (b"done\n", 1)


def test_a_command_ends_its_process_without_the_teardown_of_modules():
    script = "import atexit, builtins, threading, time\nfrom bapo_lightning.runs.command import end_with\n"
    script += "class Left:\n    def __del__(self): print('torn down')\nbuiltins.left = Left()\n"
    script += "atexit.register(print, 'handler')\nwork = lambda: (time.sleep(0.2), print('thread'))\n"
    script += "threading.Thread(target=work).start()\nend_with(lambda: 'no such file')"
    ended = run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert (ended.stdout, ended.stderr, ended.returncode) == ("thread\nhandler\n", "no such file\n", 1)


def test_what_is_printed_while_something_is_displayed_is_printable_too(terminal, monkeypatch):  # noqa: F811
    terminal.__class__ = Terminal
    with shown(Place.RUN, "bar"):
        print(f"\x1b]8;;http://x\x1b\\link {HOSTILE}")
        print("\x1b[31mred")
    written = terminal.file.getvalue()
    assert "link n" in written and "PWNED" in written and "red" in written
    assert not {"\x07", "\x9b", "\u202e", "\x7f"} & set(written)
    assert not any(escape in written for escape in ("\x1b]", "\x1b[2J", "\x1b[31m"))


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_shows_its_arguments_as_they_are(command):
    done = run_command(module_of(command), f"mistake={HOSTILE}", *NEEDED.get(command, []))
    told = done.stdout + done.stderr
    assert done.returncode != 0 and "PWNED" in told
    assert not controls(told)


def test_a_command_that_does_not_exist_is_shown_likewise():
    done = run_command("bapo_lightning", HOSTILE)
    assert done.returncode == 1 and "PWNED" in done.stderr and not controls(done.stderr)


@pytest.fixture
def table(tmp_path):
    """Sums, with a text that the model can read as well."""
    rows = [{"problem": f"{HOSTILE}{number}+1=", "answer": f"{number + 1}"} for number in range(10, 40)]
    file = tmp_path / f"{HOSTILE.replace('/', '')}.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


def test_data_shows_problems_that_cannot_control_the_terminal(table):
    link = table.with_name("rows.jsonl")
    link.symlink_to(table)
    settings = "data=table", f"data.train.path={link}", "scale.max_prompt_tokens=64", "+show=2"
    done = run_command("bapo_lightning.tools.commands.data", *settings)
    assert done.returncode == 0 and "<pad>" in done.stdout  # for characters that the tokenizer lacks
    assert not controls(done.stdout + done.stderr)


@pytest.mark.slow
def test_a_run_shows_problems_and_tracebacks_that_cannot_control_the_terminal(table, tmp_path):
    settings = [
        "data=table", "data/prompt=plain", f"data.train.path={table.with_name('rows.jsonl')}",
        "scale.max_prompt_tokens=64", "scale.validation_problems=4", "callbacks.validation.every=1",
        "reward._target_=tests.runs.own_classes.failing_with_the_problem", f"run_folder={tmp_path / 'run'}",
    ]  # fmt: skip
    table.rename(table.with_name("rows.jsonl"))
    done = train(*settings)
    assert done.returncode != 0 and "PWN" in done.stdout and "PWNED" in done.stderr, done
    assert not controls(done.stdout + done.stderr)


def test_tables_of_runs_show_names_that_cannot_control_the_terminal(tmp_path, capsys):
    names, folders = {"experiment": HOSTILE, "devices": HOSTILE, "git_commit": HOSTILE}, []
    for algorithm, seed, added in (("grpo", 0, HOSTILE), ("grpo", 1, HOSTILE), ("bapo", 0, "")):
        rows = [synthetic_row(step, 40, algorithm, random.Random(seed)) for step in range(40)]
        folders.append(write_run(tmp_path / f"{algorithm}{seed}", rows, algorithm + added, seed, **names))
    output = ["--output", str(tmp_path / "out")]
    assert compare([*map(str, folders), *output]) == 0
    assert compare([str(folders[0])]) == 0  # its summary
    assert record([*map(str, folders[:2]), "--output", str(tmp_path / "recorded.json")]) == 0
    told = capsys.readouterr()
    assert told.out.count("PWNED") >= 3 and not controls(told.out + told.err)
    assert any("PWNED" in line["setting"] for line in csv.DictReader((tmp_path / "out/compare.csv").open()))
    assert not controls((tmp_path / "out/compare.csv").read_text())
