"""Training runs as jobs of a map: what sets them apart, and the curves that are read of them."""

import json
from dataclasses import replace

import numpy as np
import pytest
from tests.configuration.compositions import validated

from bapo_lightning.system.errors import ConfigError, DataError
from studies.map.cells import FRESH, Measured
from studies.map.jobs import all_jobs, composed
from studies.map.kept import KeptRuns
from studies.map.language import curves_of, make_runs, plan_runs
from studies.map.plan import read_map


@pytest.fixture(scope="module")
def jobs(tmp_path_factory):
    """Settings of the shipped map of the locks, and its jobs by cut and method."""
    config = read_map(["map=locks", f"output={tmp_path_factory.mktemp('map')}", "seeds=2", "gate_seeds=3"])
    every = all_jobs(config, tmp_path_factory.mktemp("cells"))
    return config, {(dict(job.cell.options)["scale.max_new_tokens"], job.method): job for job in every}


def test_runs_of_a_map_make_equally_many_updates_on_equally_many_answers(jobs):
    config, by_method = jobs
    plan = plan_runs(config, [by_method[10, FRESH], by_method[10, "bapo_50"]])
    assert len(plan.jobs) == 5 + 2, "the gate has three seeds of its own"
    sizes = set()
    for overrides in plan.jobs.values():
        run = validated(*overrides)
        updates = run.scale.num_rollout_batches * run.staleness.updates_per_rollout_batch
        answers = run.scale.prompts_per_batch * run.scale.num_rollout_batches * run.scale.group_size
        sizes.add((updates, answers))
    assert sizes == {(480, 480 * 16 * 8)}
    fresh, stale = (validated(*plan.jobs[name]) for name in (next(iter(plan.jobs)), [*plan.jobs][-1]))
    assert (fresh.staleness.age_bound, stale.staleness.age_bound) == (0, 31)
    assert (fresh.algorithm.name, stale.algorithm.name) == ("grpo", "bapo")


def test_runs_at_a_lag_are_that_far_ahead_and_fresh_data_is_not(tmp_path):
    config = read_map(["map=lag_locks", "only=[sequence]"])
    every = {job.method: job for job in all_jobs(config, tmp_path)}
    assert [seed for job in every.values() for seed in job.seeds] == [*range(1000, 1008)] * 2, "no gate"
    plan = plan_runs(config, list(every.values()))
    for name, overrides in plan.jobs.items():
        found = validated(*overrides)
        assert (found.staleness.age_bound, found.staleness.updates_per_rollout_batch) == (
            (0, 1) if FRESH in name else (12, 1)
        )
        assert found.staleness.async_generation == (FRESH not in name)
    with pytest.raises(ConfigError, match=r"axes\.lag is one of exact worlds"):
        read_map(["map=lag_locks", "worlds.locks.durations=null"])


def written(folder, rows):
    folder.mkdir()
    (folder / "config.yaml").write_text("name: locks\n")
    (folder / "manifest.json").write_text(json.dumps({"status": "finished"}))
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def test_curves_are_held_out_reward_and_means_since_the_validation_before(tmp_path):
    at = {
        1: {"val/locks/avg@4": 0.25, "val/locks/pass@2": 0.3, "val/locks/pass@4": 0.5},
        3: {"val/locks/avg@4": 0.75, "val/locks/pass@2": 0.8, "val/locks/pass@4": 1.0},
    }
    bounds = [(0.6, 1.2), (0.9, 3.0), (0.9, 3.0), (0.9, 3.0)]
    rows = [{"step": step, "policy/entropy": float(step), **at.get(step, {})} for step in range(4)]
    for row, (low, high) in zip(rows, bounds, strict=True):
        row |= {"bapo/clip_low": low, "bapo/clip_high": high, "bapo/positive_share": 0.4}
    del rows[3]["bapo/positive_share"]  # an update with nothing to balance
    folder = written(tmp_path / "run", rows)
    found = curves_of(folder, validated("algorithm=bapo").algorithm.bounds.make())
    assert found["reward"].tolist() == [0.25, 0.75] and found["pass_at_k"].tolist() == [0.5, 1.0]
    assert found["entropy"].tolist() == [0.5, 2.5]
    assert found["rests"].tolist() == [0.5, 0.0] and found["ends"].tolist() == [0.5, 1.0]
    fixed = curves_of(folder, validated("algorithm=grpo").algorithm.bounds.make())
    assert np.isnan(fixed["rests"]).all() and np.isnan(found["clip_fraction"]).all()
    (folder / "virtual_times.json").write_text("[0.5, 1.5, 2.5, 4.0]")
    assert curves_of(folder, validated("algorithm=grpo").algorithm.bounds.make())["time"].tolist() == [
        1.5,
        4.0,
    ]


def test_a_kept_run_is_not_made_again_and_fills_its_job(jobs, tmp_path, capsys):
    config, by_method = jobs
    job = replace(by_method[10, "bapo_50"], path=tmp_path / "cells/bapo_50.npz")
    config = config.model_copy(update={"kept": str(tmp_path / "kept.jsonl"), "output": str(tmp_path / "map")})
    kept, plan = KeptRuns(tmp_path / "kept.jsonl"), plan_runs(config, [job])
    for number, (run, own) in enumerate(plan.jobs.items()):
        curves = {"reward": np.array([number, 0.5]), "rests": np.array([0.0, np.nan])}
        kept.add(run, (*plan.common, *own), curves)
    assert make_runs(config, {"bapo_50": composed(config, "bapo_50")}, [job]) == 0
    measured = Measured.read(job.path)
    assert measured.curves["reward"].tolist() == [[0.0, 0.5], [1.0, 0.5]]
    assert np.isnan(measured.curves["rests"][:, 1]).all()
    other = config.model_copy(update={"num_updates": 960})
    with pytest.raises(ConfigError, match=r"is kept in .* with .*num_rollout_batches=15") as caught:
        make_runs(other, {}, [job])
    assert "begins anew" in caught.value.problems[-1]


def test_a_damaged_line_of_kept_runs_is_named(tmp_path):
    file = tmp_path / "kept.jsonl"
    file.write_text('{"run": "a", "overrides": [], "curves": {"reward": [1, null]}}\n{"run": "b"}\n')
    with pytest.raises(DataError, match=r"line 2 of .*kept\.jsonl is corrupt"):
        KeptRuns(file)


def test_a_method_that_needs_a_reference_policy_is_refused_in_one_sentence():
    with pytest.raises(ConfigError, match="flowrl needs a reference policy or an") as caught:
        composed(read_map(["methods.grpo.set.algorithm=flowrl"]), "grpo")
    assert len(caught.value.problems) == 1
