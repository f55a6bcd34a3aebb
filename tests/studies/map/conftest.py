"""A map of two cells: in the first bounds matter, in the second nothing does."""

import pytest
from tests.studies.map.made_up_map import CELL, GAIN, METHODS, OTHER, write

from studies.map.cells import FRESH
from studies.map.verdicts import read_results


@pytest.fixture(scope="package")
def results(tmp_path_factory):
    folder = tmp_path_factory.mktemp("map")
    for cell, scale in ((CELL, 1.0), (OTHER, 0.0)):
        for method, gain in GAIN.items():
            spread = 0.1 if method == "noisy" else 0.0 if method in ("grpo", FRESH) else 0.001
            if method == FRESH and cell is OTHER:
                continue  # that of the other cell serves both
            write(folder, cell, method, gain * scale, spread)
    return read_results(folder, [CELL, OTHER], METHODS, ["narrow", "wide"], ["wide"])
