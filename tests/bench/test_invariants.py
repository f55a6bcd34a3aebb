"""The table of docs/promises.md names tests that exist."""

import re

from invariants import ROOT, invariants


def test_every_invariant_names_a_test():
    rows = invariants()
    assert len(rows) == 17
    for _, test, _ in rows:
        path, *names = test.split("::")
        text = (ROOT / path).read_text()
        if path.endswith("test_engine_contract.py"):  # its tests are inherited
            text += (ROOT / "tests/rollout/contract.py").read_text()
        assert all(re.search(rf"(?:class|def) {name}\b", text) for name in names), test
