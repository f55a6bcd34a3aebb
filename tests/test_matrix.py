"""The matrix of choices leaves no pair out; `make matrix` runs its rows."""

import json

from tests.matrix.choices import FACTORS
from tests.matrix.rows import FILE, covered, subsets

MATRIX = json.loads(FILE.read_text())


def test_every_pair_of_choices_is_in_a_row_or_refused():
    run = set().union(*(covered(row) for row in MATRIX["rows"]))
    refused = {frozenset(entry["choices"].items()) for entry in MATRIX["refused"]}
    missed = [key for key in subsets() if len(key) == 2 and key not in run]
    left_out = [key for key in missed if frozenset(key) not in refused]
    assert left_out == [], "python -m tests.matrix.rows makes the rows again"


def test_a_row_has_one_value_of_every_factor():
    assert all(list(row) == list(FACTORS) for row in MATRIX["rows"])


def test_a_refusal_says_what_to_write_instead():
    assert [entry for entry in MATRIX["refused"] if "; write " not in entry["reason"]] == []
