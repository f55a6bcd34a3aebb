"""Conversations on the page of a run: its curves of turns, and responses turn by turn."""

import json
import re

import pytest
from tests.report.synthetic_runs import write_run

from bapo_lightning.report.view.page import write_view

TURNS = [
    {"by": "policy", "text": "[1+1]", "calls": 2, "errors": 1},
    {"by": "environment", "text": "2"},
    {"by": "policy", "text": "2#"},
]
TOKENS = {"text": ["[1+1]", "2", "#"], "first": 0, "ratio": [1.0] * 3, "age": [0] * 3, "clipped": [0] * 3}


def row(step, **more):
    verdict = {"status": "correct", "reward": 1.0, "advantage": 0.5, "num_tokens": 3, "finish": "stop"}
    text = {"problem": "p", "prompt": "1+1=", "gold": "2", "response": "2", "versions": [0]}
    return {"step": step, **text, **verdict, **more}


def metrics(step):
    turns = {
        "mean": 1.5, "max": 3, "calls_mean": 0.5, "error_share": 0.1, "void_share": 0.2, "cut_share": 0.3,
    }  # fmt: skip
    shares = {"positive_share_1": 0.4, "positive_share_2": 0.6}
    found = {f"turns/{name}": value for name, value in (turns | shares).items()}
    return {"step": step, "train/reward": 0.5, **found}


@pytest.fixture
def page(tmp_path):
    def written(rollouts, rows):
        folder = write_run(tmp_path / "run", rows)
        (folder / "rollouts.jsonl").write_text("".join(json.dumps(entry) + "\n" for entry in rollouts))
        return write_view(folder, 5.0)[0].read_text()

    return written


def embedded(text, name):
    return json.loads(re.search(rf'id="{name}">(.*?)</script>', text, re.DOTALL)[1])


def test_a_run_with_turns_has_curves_of_them(page):
    charts = embedded(page([], [metrics(step) for step in range(4)]), "charts")
    turns, faults, shares = (chart for chart in charts if chart["name"].startswith(("turn", "faults")))
    assert [curve["mean"][-1] for curve in turns["curves"]] == [1.5, 0.5, 3]
    assert [curve["label"] for curve in faults["curves"]] == ["failed calls", "void turn", "cut"]
    assert [curve["label"] for curve in shares["curves"]] == ["turn 1", "turn 2"]
    assert len({curve["colour"] for curve in shares["curves"]}) == 2
    assert shares["rules"] == [0.45]  # the target of the search


def test_a_response_with_turns_is_shown_turn_by_turn(page):
    entry = row(0, turns=TURNS, tokens=TOKENS | {"feedback_at": [1]})
    text = page([entry, row(0)], [metrics(0)])
    assert embedded(text, "samples")[0]["rows"] == [entry, row(0)]
    assert "const conversation" in text and ".turn.environment" in text
    assert "what the environment replied" in text


def test_a_page_without_turns_has_nothing_of_them(page):
    text = page([row(0, tokens=TOKENS)], [{"step": 0, "train/reward": 0.5}])
    assert "turn 1" not in text and "environment" not in text and "conversation" not in text
    assert not any("turn" in chart["name"] for chart in embedded(text, "charts"))


def test_what_policy_and_environment_wrote_is_cut_each_by_itself(page):
    turns = [
        {"by": "policy", "text": "x" * 3000}, {"by": "environment", "text": "y" * 4500},
        {"by": "policy", "text": "x" * 1200}, {"by": "environment", "text": "y" * 10},
        {"by": "policy", "text": "x" * 5},
    ]  # fmt: skip
    (shown,) = embedded(page([row(0, turns=turns)], [metrics(0)]), "samples")[0]["rows"]
    assert [turn["text"].lstrip("xy") for turn in shown["turns"]] == [
        "", " ... (500 characters more)", " ... (200 characters more)", " ... (10 characters more)",
        " ... (5 characters more)",
    ]  # fmt: skip


def test_turns_after_the_last_coloured_token_are_left_out(page):
    known = {name: [1] * 1500 for name in ("ratio", "age", "clipped")}
    tokens = {"text": ["x"] * 1500, "first": 0, **known, "feedback_at": [400, 1000, 1400]}
    (shown,) = embedded(page([row(0, turns=TURNS, tokens=tokens)], [metrics(0)]), "samples")[0]["rows"]
    assert shown["tokens"]["feedback_at"] == [400, 1000]
    assert shown["tokens"]["text"][1000:] == [" ... (500 tokens more)"]


def test_texts_of_turns_are_data_and_never_part_of_the_page(page):
    hostile = "</script><script>alert(1)</script><b>"
    turns = [
        {"by": "policy", "text": "a"},
        {"by": "environment", "text": hostile},
        {"by": "policy", "text": "b"},
    ]
    text = page([row(0, turns=turns)], [metrics(0)])
    assert "<script>alert" not in text
    assert embedded(text, "samples")[0]["rows"][0]["turns"][1]["text"] == hostile
