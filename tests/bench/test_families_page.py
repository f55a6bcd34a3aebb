"""The page and the table of model families have the bench's list, and show no fault."""

import csv
import re

import pytest
from bench.families import FAMILIES, NAMES, PAGE, page, run_missing

TEXT = PAGE.read_text(encoding="utf-8")
ROWS = {
    row.pop("family"): row
    for row in csv.DictReader(PAGE.with_suffix(".csv").read_text(encoding="utf-8").splitlines())
}


def test_the_table_has_a_row_of_each_family_and_the_page_follows_from_it():
    assert list(ROWS) == FAMILIES
    made_at = r"commit (?P<commit>\w{7,}) of (?P<date>20[\d-]+) with transformers (?P<transformers>\S+)"
    found = re.search(made_at + r" and vLLM (?P<vllm>\d\S+) for", TEXT).groupdict()
    assert page(ROWS, found) == TEXT


@pytest.mark.parametrize("family", FAMILIES)
def test_a_cell_is_yes_or_a_reason_and_what_vllm_lacks_its_own_loader_lacks(family):
    said = ROWS[family]
    assert [name for name in NAMES if said[name].startswith(("fault", "not run"))] == []
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


def test_a_family_with_yes_everywhere_is_named_without_a_row():
    rows = {"llama": dict.fromkeys(NAMES, "yes"), "gpt2": dict.fromkeys(NAMES, "no: because")}
    text = page(rows, {"commit": "c", "date": "d", "transformers": "5", "vllm": "0"})
    assert "1 of 2 families, `llama`." in text and "| `llama`" not in text
    assert f"| `gpt2` {'| refused ' * len(NAMES)}|" in text
