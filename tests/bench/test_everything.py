"""One command runs every benchmark: what cannot run says what to do, what fails does not stop the rest, and
all is in one file.
"""

import json
import sys

import everything
import pytest
from everything import Part


@pytest.fixture
def scripts(tmp_path, monkeypatch):
    """Two parts: one prints and records, one fails."""
    (tmp_path / "good.py").write_text(
        "import json, sys\nopen(sys.argv[sys.argv.index('--json') + 1], 'w').write(json.dumps({'seconds': "
        "3}))\n"
    )
    (tmp_path / "bad.py").write_text("raise SystemExit(7)\n")
    monkeypatch.setattr(everything, "BENCH", tmp_path)
    monkeypatch.setattr(everything, "ROOT", tmp_path)

    def use(**parts):
        monkeypatch.setattr(everything, "parts", lambda threads: parts)
        monkeypatch.setattr(sys, "argv", ["everything.py", "--json", str(tmp_path / "all.json")])
        everything.main()

    use.record = lambda: json.loads((tmp_path / "all.json").read_text())
    return use


def test_the_numbers_of_all_parts_are_in_one_file(scripts):
    scripts(a=Part("A", ("good.py",)), b=Part("B", ("good.py", "--fast")))
    parts = scripts.record()["parts"]
    assert [(name, part["ended"], part["numbers"]) for name, part in parts.items()] == [
        ("a", "done", {"seconds": 3}),
        ("b", "done", {"seconds": 3}),
    ]
    assert parts["b"]["command"] == ["good.py", "--fast"]


def test_a_part_that_fails_does_not_stop_the_rest_and_is_named_at_the_end(scripts):
    with pytest.raises(SystemExit, match="failed: a"):
        scripts(a=Part("A", ("bad.py",)), b=Part("B", ("good.py",)))
    assert [part["ended"] for part in scripts.record()["parts"].values()] == ["failed with 7", "done"]


def test_a_part_without_what_it_needs_says_what_to_do(scripts, capsys):
    scripts(a=Part("A", ("good.py",), needs=((".venv-trl/bin/python", "make setup-trl"),)))
    assert "not run; first: make setup-trl" in capsys.readouterr().out
    assert scripts.record()["parts"]["a"]["ended"] == "not run"


def test_every_part_is_a_script_that_exists():
    assert [
        part.command[0]
        for part in everything.parts(2).values()
        if not (everything.BENCH / part.command[0]).is_file()
    ] == []
