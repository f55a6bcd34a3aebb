"""Training in virtual time: ages and times by hand, and a run whose calculator is slow."""

import json
from types import SimpleNamespace

import pytest
from tests.data.rollouts.scripted import ScriptedEngine, scheduler

from bapo_lightning.data.rollouts.collector import TrainerState
from bapo_lightning.data.rollouts.regime import Regime
from bapo_lightning.system.errors import ConfigError
from studies.virtual_time import TIMES_FILE, Durations, VirtualCollector, runs_forked


def trained(num_updates=6, step=0.0, updates=1, **options):
    """Times at which updates begin, and ages of what they train on; responses have one token."""
    regime = Regime("test", 1, updates, async_generation=True, **options)
    source = scheduler(ScriptedEngine(longest=1), regime, 2, num_updates // updates)
    version, ages = 0, []

    def refresh():
        source.sampler.engine.load_weights(None, version)

    collector = VirtualCollector(source, source.sampler, refresh, 2, Durations(step=step))
    for version in range(num_updates):
        if version % updates:
            collector.between_updates(TrainerState(version, version))
        else:
            groups = collector.next_groups(2, TrainerState(version, version))
        rollouts = [sample.rollout for group in groups for sample in group.samples]
        ages.append({version - sampled for rollout in rollouts for sampled in rollout.versions})
    return collector.begins, ages


def test_an_engine_that_takes_no_time_is_always_as_far_ahead_as_it_may():
    assert trained(max_age=3) == ([0, 1, 2, 3, 4, 5], [{0}, {1}, {2}, {3}, {3}, {3}])
    _, ages = trained(max_age=7, updates=2)
    assert ages == [{0}, {1}, {2}, {3}, {4}, {5}]


def test_the_trainer_waits_for_a_slow_engine_and_gives_it_weights_after_a_pass():
    assert trained(step=2.0, max_age=3) == ([2, 4, 6, 8, 10, 12], [{0}, {1}, {1}, {1}, {1}, {1}])


def test_the_trainer_waits_for_the_end_of_a_streams_steps_to_hand_over_weights():
    """Eight steps take 0.4, and three batches are started until the first update ends, during the third's."""
    begins, ages = trained(step=0.05, max_age=3, stream="keep")
    assert begins == pytest.approx([0.4, 1.6, 2.6, 3.6, 4.6, 5.6])
    assert ages == [{0}, {1}, {2}, {3}, {3}, {3}]


@pytest.mark.parametrize(("workers", "words"), [(0, "durations.step=0"), (2, "environment.workers=0")])
def test_replies_that_never_come_or_come_in_real_time_are_refused(workers, words):
    regime = Regime("test", 1, 1, async_generation=True, stream="keep")
    source = scheduler(ScriptedEngine(longest=1), regime, 2, 2)
    sampler = SimpleNamespace(engine=source.sampler.engine, conversations=SimpleNamespace(workers=workers))
    with pytest.raises(ConfigError, match=words):
        VirtualCollector(source, sampler, lambda: None, 2, Durations())


def test_a_run_waits_for_slow_replies_and_leaves_its_times(tmp_path):
    folder = tmp_path / "run"
    sizes = ("prompts_per_batch=4", "num_rollout_batches=2", "validation_problems=2")
    overrides = (
        *("experiment=sums", "algorithm=grpo", "regime=stream", "regime.minibatches=1", "regime.window=4"),
        *(f"scale.{size}" for size in sizes),
        *("callbacks.validation.every=0", "cpu_threads=1", f"run_folder={folder}", "resume=auto"),
    )
    job = SimpleNamespace(overrides=overrides, folder=folder)
    durations = Durations(step=0.05, reply=50.0)
    assert list(runs_forked(durations, {"slow": job})) == [("slow", 0)], (tmp_path / "run.log").read_text()
    begins = json.loads((folder / TIMES_FILE).read_text())
    assert len(begins) == 2 and begins[-1] > 20
