"""The drill of `make drill`, with fewer kills and regimes."""

import json
from pathlib import Path

import pytest
from kill_and_resume import answered_turns
from tests.commands import run_command

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.slow
def test_killed_runs_end_as_if_they_had_never_stopped():
    regimes = "async, partial, turns, following", "replay, ranks"
    drill = ROOT / "bench/kill_and_resume.py"
    done = run_command(drill, "--kills", "2", "--regimes", *regimes, cwd=ROOT, timeout=1800)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("as if it had never stopped") == 2


def test_turns_are_compared_without_the_special_tokens_that_no_environment_gets(tmp_path):
    turns = [
        {"by": "policy", "text": "1+<pad>2;"},
        {"by": "environment", "text": "0"},
        {"by": "policy", "text": "3#"},
    ]
    (tmp_path / "rollouts.jsonl").write_text(json.dumps({"step": 0, "problem": "p", "turns": turns}) + "\n")
    assert list(answered_turns(tmp_path)) == ['["p", "1+2;"]']
