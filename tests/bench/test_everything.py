"""One command runs every benchmark: a part that cannot run says what to do, and a failure stops no other."""

import json
import sys

import everything
import pytest
from everything import MODEL, TRL, Part

GOOD = """
import json, sys
path = sys.argv[sys.argv.index("--json") + 1]
json.dump({"arguments": [argument for argument in sys.argv[1:] if argument != path]}, open(path, "w"))
"""


@pytest.fixture
def scripts(tmp_path, monkeypatch):
    """Two scripts: one records its arguments, one fails."""
    (tmp_path / "good.py").write_text(GOOD)
    (tmp_path / "bad.py").write_text("raise SystemExit(7)\n")
    monkeypatch.setattr(everything, "BENCH", tmp_path)
    monkeypatch.setattr(everything, "ROOT", tmp_path)
    monkeypatch.setattr(everything.os, "cpu_count", lambda: 3)

    def use(*arguments, **parts):
        monkeypatch.setattr(everything, "PARTS", parts)
        monkeypatch.setattr(sys, "argv", ["everything.py", "--json", str(tmp_path / "all.json"), *arguments])
        everything.main()

    use.record = lambda: json.loads((tmp_path / "all.json").read_text())["parts"]
    return use


GOOD_PART = Part("B", "good.py", in_all=True)
SIZED = {"a": Part("A", "good.py x", "--few 1", in_all=True, has_threads=True), "b": GOOD_PART}


def arguments(record):
    """What each script was given."""
    return {name: " ".join(part["numbers"]["arguments"]) for name, part in record.items()}


def test_the_numbers_of_all_parts_are_in_one_file(scripts):
    scripts(**SIZED, c=Part("C", "bad.py"))
    parts = scripts.record()
    assert {name: part["ended"] for name, part in parts.items()} == {"a": "done", "b": "done"}
    assert arguments(parts) == {"a": "x --few 1 --threads 3 --json", "b": "--json"}
    assert parts["a"]["command"] == ["good.py", "x", "--few", "1", "--threads", "3"]


@pytest.mark.parametrize(("given", "expected"), [
    (["--only", "a"], "x --few 1 --threads 3 --json"),
    (["--only", "a", "--threads", "1"], "x --few 1 --threads 1 --json"),
    (["--only", "a", "--full"], "x --json"),
    (["--only", "a", "--full", "--threads", "1"], "x --threads 1 --json"),
    (["--only", "a", "--", "--tokens", "8192"], "x --tokens 8192 --json"),
])  # fmt: skip
def test_a_part_runs_small_at_its_own_size_or_with_options_of_its_script(scripts, given, expected):
    scripts(*given, **SIZED)
    assert arguments(scripts.record()) == {"a": expected}


def test_options_of_a_script_need_the_name_of_one_part(scripts, capsys):
    for only in ([], ["--only", "a", "b"]):
        with pytest.raises(SystemExit):
            scripts(*only, "--", "--tokens", "8192", **SIZED)
        assert "--tokens 8192 are options of one script: name its part" in capsys.readouterr().err


def test_a_part_that_fails_does_not_stop_the_rest_and_is_named_at_the_end(scripts):
    with pytest.raises(SystemExit, match=r"^a failed with 7$"):
        scripts(a=Part("A", "bad.py", in_all=True, has_json=False), b=GOOD_PART)
    assert [part["ended"] for part in scripts.record().values()] == ["failed with 7", "done"]


def test_a_part_without_what_it_needs_says_what_to_do(scripts, capsys):
    part = Part("A", "good.py", needs=(TRL, MODEL), in_all=True)
    scripts(a=part)
    assert "not run; first: make setup-trl, make model-smollm2" in capsys.readouterr().out
    assert scripts.record()["a"]["ended"] == "not run"
    with pytest.raises(SystemExit, match=r"^a not run$"):
        scripts("--only", "a", a=part)


@pytest.mark.parametrize("name", everything.PARTS)
def test_every_part_is_a_script_that_takes_its_options(name):
    part = everything.PARTS[name]
    source = (everything.BENCH / part.script).read_text()
    assert ("write_json(" in source) == part.has_json
    options = [word for word in part.options(full=False, threads=2) if word.startswith("--")]
    assert [option for option in options if option.removeprefix("--") not in source] == []
