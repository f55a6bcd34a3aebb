"""The clock, the medians and the record that all benchmarks share."""

import json
import re
import time

import pytest
from invariants import ROOT, invariants
from measuring import Spread, in_turns, method, ratio, turn, write_json


def test_kinds_take_turns_in_both_orders_and_the_warm_up_is_not_counted():
    called = []
    taken = in_turns({"a": lambda: called.append("a"), "b": lambda: called.append("b")}, repeats=2, warm_up=1)
    assert "".join(called) == "abbaab"
    assert {name: len(turns) for name, turns in taken.items()} == {"a": 2, "b": 2}


def test_waiting_counts_on_the_wall_clock_and_not_as_cpu_time():
    waited = turn(lambda: time.sleep(0.2))
    assert waited.wall >= 0.2 and waited.cpu < 0.1


def test_a_spread_is_the_median_and_the_range():
    spread = Spread.of([3.0, 1.0, 2.0, 10.0])
    assert spread == Spread(2.5, 1.0, 10.0, 4)
    assert spread.text("ms", scale=10, digits=1) == "25.0 ms (10.0 .. 100.0)"
    assert spread.text() == "2.50 (1.00 .. 10.00)"


def test_a_ratio_is_made_of_neighbouring_turns():
    assert ratio([2.0, 8.0, 9.0], [1.0, 2.0, 3.0]) == Spread(3.0, 2.0, 4.0, 3)


def test_a_ratio_of_unequal_numbers_of_turns_is_refused():
    with pytest.raises(ValueError):
        ratio([1.0], [1.0, 2.0])


def test_the_method_names_threads_warm_up_and_repeats():
    said = "method: 2 threads, in turns, 1 warm-up and 5 counted of each; median (least .. most)"
    assert method(5, 1, 2) == said


def test_the_record_is_json_and_nothing_is_written_without_a_path(tmp_path):
    write_json(None, {})
    write_json(tmp_path / "made" / "a.json", {"update": Spread.of([1.0]), "path": tmp_path})
    expected = {"update": {"median": 1.0, "least": 1.0, "most": 1.0, "count": 1}, "path": str(tmp_path)}
    assert json.loads((tmp_path / "made" / "a.json").read_text()) == expected
    assert [path.name for path in (tmp_path / "made").iterdir()] == ["a.json"]


def test_every_invariant_names_a_test():
    rows = invariants()
    assert len(rows) == 23
    for _, test, _ in rows:
        path, *names = test.split("::")
        text = (ROOT / path).read_text()
        if path.endswith("test_engine_contract.py"):  # its tests are inherited
            text += (ROOT / "tests/rollout/contract.py").read_text()
            text += (ROOT / "tests/rollout/stream_contract.py").read_text()
        assert all(re.search(rf"(?:class|def) {name}\b", text) for name in names), test
