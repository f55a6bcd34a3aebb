"""The page of model families is of the bench's list, and shows no fault."""

import re

import pytest
from bench.families import FAMILIES, PAGE, page, run_missing
from bench.family_checks import COLUMNS, VLLM_COLUMNS

NAMES = [*COLUMNS, *VLLM_COLUMNS]
TEXT = PAGE.read_text(encoding="utf-8")
NOTES = dict(re.findall(r"^(\d+)\. (.*)$", TEXT, re.MULTILINE))
ROWS = {
    family: dict(zip(NAMES, cells.split(" | "), strict=True))
    for family, cells in re.findall(r"^\| `(\w+)` \| (.*) \|$", TEXT, re.MULTILINE)
}


def test_the_page_has_a_row_of_each_family_and_says_what_it_is_of():
    assert list(ROWS) == FAMILIES
    made_at = r"\nMade at commit [0-9a-f]{7,} of 20\d\d-\d\d-\d\d with transformers \d[\d.]+ and vLLM \d"
    assert re.search(made_at, TEXT)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_cell_is_yes_or_a_reason_and_what_vllm_lacks_its_own_loader_lacks(family):
    said = {name: NOTES.get(cell.strip("()"), cell) for name, cell in ROWS[family].items()}
    assert [name for name, text in said.items() if text.startswith(("fault", "not run"))] == []
    assert all(cell.startswith("yes") or cell.strip("()") in NOTES for cell in ROWS[family].values())
    if (reason := said["samples (vLLM)"]).startswith("not "):
        assert said["export in vLLM"] == reason


def test_a_row_is_made_once_unless_it_shows_a_fault(tmp_path, monkeypatch):
    made = []

    def run_row(family, columns, seconds):
        made.append((family, *columns))
        return {"trains": "yes", "exports": "fault: none"}

    monkeypatch.setattr("bench.families.run_row", run_row)
    for _ in range(2):
        run_missing(tmp_path / "rows.json", ["llama"], ["trains", "exports"], 1)
    assert made == [("llama", "trains", "exports"), ("llama", "exports")]


def test_a_sentence_stands_once_below_the_table():
    rows = {"llama": dict.fromkeys(NAMES, "no"), "gpt2": dict.fromkeys(NAMES, "no")}
    text = page(rows, {"commit": "c", "date": "d", "transformers": "5", "vllm": "0"})
    assert text.count("\n1. no\n") == 1 and "\n2. " not in text
    assert f"| `gpt2` {'| (1) ' * len(NAMES)}|" in text
