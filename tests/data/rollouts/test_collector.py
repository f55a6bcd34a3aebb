"""Which scheduler and collector a regime has, and how they get weights."""

from pathlib import Path
from types import SimpleNamespace

import pytest
from tests.data.rollouts.scripted import ScriptedEngine, scheduler

from bapo_lightning.data.rollouts.collector import collector_for
from bapo_lightning.data.rollouts.regime import Regime

REFRESHED, HANDED_OVER, PUSHED = "unless it has them", "without the proof", "in any case"
TRAINER = SimpleNamespace(refresh_engine=REFRESHED, hand_over_weights=HANDED_OVER, push_weights=PUSHED)
CLASSES = {
    (False, None, False): ("RolloutScheduler", "SyncCollector", REFRESHED),
    (True, None, False): ("RolloutScheduler", "AsyncCollector", HANDED_OVER),
    (True, None, True): ("RolloutScheduler", "ScheduledCollector", PUSHED),
    (True, "keep", False): ("StreamScheduler", "AsyncCollector", HANDED_OVER),
    (True, "keep", True): ("StreamScheduler", "ScheduledCollector", PUSHED),
}
OTHERS = {"async_protocol", "async_collector", "scheduled_collector", "stream_scheduler"}
SOURCE = Path(__file__).resolve().parents[3] / "src/bapo_lightning"


@pytest.mark.parametrize("kind", CLASSES)
def test_a_regime_has_its_scheduler_and_its_collector(kind):
    overlaps, stream, follows = kind
    regime = Regime("own", 1, 1, async_generation=overlaps, max_age=3, stream=stream)
    source = scheduler(ScriptedEngine(1), regime, groups_per_batch=2, num_batches=4)
    found = collector_for(source, source.sampler, TRAINER, 2, [] if follows else None)
    assert (type(source).__name__, type(found).__name__, found.refresh_engine) == CLASSES[kind]


@pytest.mark.parametrize("room", ["data", "modules", "callbacks", "configuration", "runs", "cli"])
def test_a_synchronous_run_imports_nothing_of_other_regimes(room):
    files = [path for path in (SOURCE / room).rglob("*.py") if path.stem not in OTHERS]
    lines = [line for path in files for line in path.read_text().splitlines()]
    imported = {line.split()[1].rpartition(".")[2] for line in lines if line.startswith(("from ", "import "))}
    assert files and not OTHERS & imported
