"""Nodes of a cluster that die, join, are slow, or are not as the trainer's."""

import shutil
import time
from pathlib import Path

import pytest
from tests.builders import VOCAB_SIZE, random_policy
from tests.rollout.contract import SAMPLING, requests

import bapo_lightning
from bapo_lightning.rollout.hf.engine import HFEngine
from bapo_lightning.rollout.weight_sync import WeightSync
from bapo_lightning.system.errors import EngineError

pytestmark = pytest.mark.slow
PATIENCE = 60  # seconds


def expected(folder, count):
    here = HFEngine(folder, max_rows=7)
    here.load_weights(random_policy(), version=3)
    return here.generate(requests(count), SAMPLING)


def synced_until(engine, count, metric="fleet/engines"):
    """Syncs until there are so many engines, or so many of another metric; returns all metrics since."""
    totals, deadline = {}, time.monotonic() + PATIENCE
    while True:
        engine.load_weights(random_policy(), version=3)
        now = engine.take_counts()
        totals = {name: totals.get(name, 0) + value for name, value in now.items()}
        if (now if metric == "fleet/engines" else totals)[metric] == count:
            return totals
        assert time.monotonic() < deadline, totals
        time.sleep(0.2)


def test_a_pass_survives_a_node_and_one_that_joins_gets_an_engine(nodes, engine, folder):
    assert engine.take_counts()["fleet/nodes"] == 3
    wanted = expected(folder, 40)
    nodes.remove(nodes.others.pop())
    assert engine.generate(requests(40), SAMPLING) == wanted
    counts = engine.take_counts()
    assert (counts["fleet/nodes"], counts["fleet/lost"], counts["fleet/reissued"]) == (2, 1, 7)
    nodes.others.append(nodes.add())
    assert synced_until(engine, 3)["fleet/joined"] == 1
    assert engine.take_counts()["fleet/nodes"] == 3
    assert engine.generate(requests(40), SAMPLING) == wanted


def test_a_slow_node_gets_less_work_and_changes_nothing(nodes, engine, folder):
    with nodes.one_more(ODD_DELAY="1.0"):
        synced_until(engine, 4)
        wanted, start = expected(folder, 280), time.monotonic()
        assert engine.generate(requests(280), SAMPLING) == wanted
        # In equal parts it would have had ten calls, and as many seconds.
        assert time.monotonic() - start < 5


def test_a_node_whose_engine_samples_otherwise_waits_and_is_found_at_the_sync(nodes, engine, folder):
    WeightSync(1e-3).push(random_policy(), engine, 3, VOCAB_SIZE)
    with nodes.one_more(ODD_SCALE="0.7"):
        engine._fleet.grow()
        deadline = time.monotonic() + PATIENCE
        while not any(member.held_back for member in engine._fleet.members):
            assert engine.generate(requests(40), SAMPLING) == expected(folder, 40)
            assert time.monotonic() < deadline
        assert engine.take_counts()["fleet/engines"] == 3
        with pytest.raises(EngineError, match="engine and trainer disagree"):
            WeightSync(1e-3).push(random_policy(), engine, 4, VOCAB_SIZE)


def test_a_node_with_an_old_version_is_refused_by_name(nodes, engine, folder, tmp_path, capfd):
    old = tmp_path / "bapo_lightning"
    shutil.copytree(Path(bapo_lightning.__file__).parent, old, ignore=shutil.ignore_patterns("__pycache__"))
    file = old / "__init__.py"
    file.write_text(file.read_text().replace(f'"{bapo_lightning.__version__}"', '"0.0.9"'))
    engine.take_counts()
    with nodes.one_more(PYTHONPATH=str(tmp_path)):
        assert synced_until(engine, 1, "fleet/refused")["fleet/joined"] == 0
        assert "was refused: its node has bapo-lightning 0.0.9 (code " in capfd.readouterr().err
        assert engine.generate(requests(40), SAMPLING) == expected(folder, 40)
        engine.load_weights(random_policy(), version=3)
        assert engine.take_counts()["fleet/refused"] == 0
