"""Studies: which cells, what does not fit, and what the numbers say."""

import json
from dataclasses import replace

import pytest
from tests.commands import run_command
from tests.configuration.compositions import composed
from tests.extras.simulation.worlds import LONGEST, setting, times
from tests.plan.test_planning import ASSUMED, GPU, RUN

from bapo_lightning.extras.simulation import study as study_module
from bapo_lightning.extras.simulation.configured import read_simulate, world_of
from bapo_lightning.extras.simulation.page import answer, console_table, law_line, write_page
from bapo_lightning.extras.simulation.study import MeasuredWorld, StudiedRun, Study, make_study
from bapo_lightning.plan.planning import make_plan
from bapo_lightning.system.errors import ConfigError, DataError

ENGINE = replace(RUN.engine, tensor_parallel=2)


def world(**options):
    run = replace(RUN, engine=ENGINE, response_tokens=LONGEST, minibatches=4, epochs=1)
    base = {"fleet_memory_share": 0.9, "link_bytes": 1e12, "sync_seconds": 1e-9, "num_skipped": 2}
    kind = MeasuredWorld if "measured" in options else StudiedRun
    return kind(make_plan(run, GPU, ASSUMED), setting(is_endless=True), **{"gpus": 8, **base, **options})


def result(trainer, age, speed, in_turns=False, stale=0.0):
    ages = {0: 1 - stale, age: stale} if stale else {0: 1.0}
    outcome = study_module.VirtualOutcome(
        10.0, speed, 0.25, 0.0, 0.1, 0.5, ages, 0.0, 0, 0, 3.5, 6.0, 0.5, 1.4, 1.0, 3.25
    )
    cell = study_module.Cell(trainer, 8 if in_turns else 8 - trainer, age, in_turns=in_turns)
    return study_module.CellResult(cell, outcome)


def test_splits_are_whole_copies_and_leave_some_for_both():
    cells = world(gpus=9).cells([0.01, 0.3, 0.5, 0.99], [3, 7], [None, 4])
    splits = {(cell.trainer_gpus, cell.fleet_gpus) for cell in cells if not cell.in_turns}
    assert splits == {(2, 6), (4, 4), (6, 2)}
    assert [(c.trainer_gpus, c.max_age, c.gpus) for c in cells if c.in_turns] == [(8, 3, 8), (8, 11, 8)]
    assert len(cells) == 2 + 3 * 2 * 2


def test_staleness_pays_as_long_as_it_brings_enough():
    results = [result(2, 3, 50.0), result(4, 3, 60.0), result(2, 7, 90.0, stale=0.5), result(4, 11, 93.0)]
    study = Study((*results, result(8, 3, 45.0, in_turns=True)), (), (), 0.05)
    assert {age: found.speed for age, found in study.by_age.items()} == {3: 60.0, 7: 90.0, 11: 93.0}
    assert (study.paying_age, study.best) == (7, results[2])
    assert study.best.idle == (2 * 0.25 + 6 * 0.5) / 8
    assert study.results[-1].idle == 0.5 - 0.1
    assert answer(study) == (
        "Best split: 2 of 8 GPUs train and 6 generate, with max_age=7 and whole responses: 90 response "
        "tokens/s, GPUs idle 44% of the time. A max_age above 7 gains less than 5%. Taking turns on all of "
        "them gives 45 tokens/s at ages up to 0: the split is 2.00 times as fast."
    )
    assert law_line(study) == (
        "Mean age of trained responses at their start: 3.50 updates, by Applied Compute's formula 3.25 (6.0 "
        "requests at once, rho 0.50, tail factor 1.40, queue 1.00 batches); of their tokens 3.50."
    )
    study = replace(study, least_gain=0.01, results=study.results[:-1])
    assert study.paying_age == 11
    assert answer(study).endswith("grows by 1% or more up to max_age=11, the largest that was tried.")


def test_what_does_not_fit_is_left_out_with_the_reason():
    tight = world()
    tight = replace(tight, plan=replace(tight.plan, gpu=replace(GPU, memory_bytes=16_000.0)))
    with pytest.raises(ValueError, match="weights, gradients and the optimizer's state take"):
        make_study(tight, tight.cells([0.5], [3], [None]), 0.05, what_if=False)


def test_a_study_writes_its_page_with_every_number(tmp_path):
    asked = world(gpus=8)
    study = make_study(asked, asked.cells([0.25, 0.5], [3, 7], [None, 4]), 0.05, what_if=True)
    assert len(study.results) == 2 + 2 * 2 * 2 and len(study.what_ifs) >= 5
    page = write_page(study, asked, "tiny", tmp_path / "page")
    text = page.read_text()
    assert (
        answer(study) in text
        and law_line(study) in text
        and "## All cells" in text
        and "geometric lengths" in text
    )
    rows = json.loads((page.parent / "cells.json").read_text())
    assert len(rows["cells"]) == len(study.results) + len(study.what_ifs)
    assert all((row["law_age"] is None) == row["in_turns"] for row in rows["cells"])
    assert (page.parent / "cells.csv").read_text().count("\n") == 1 + len(rows["cells"])
    assert (page.parent / "simulate.png").stat().st_size > 20_000
    assert "in turns" in console_table(study).splitlines()[-1]


def test_measured_times_take_the_place_of_the_plan():
    asked = world(measured=times(update=1.0, step=1.0))
    cells = asked.cells([0.25, 0.5], [3, 7], [None])
    assert [(cell.trainer_gpus, cell.fleet_gpus) for cell in cells] == [(1, 1)] * 3
    study = make_study(asked, cells, 0.05, what_if=True)
    assert study.what_ifs == ()
    assert study.best.speed == pytest.approx(8 * LONGEST / 8, rel=0.1)  # the engine sets the pace
    assert study.turns.speed == pytest.approx(8 * LONGEST / 12)


def plain(*overrides):
    return composed("+simulate=default", *overrides)


@pytest.mark.slow
def test_the_command_ends_with_the_answer_and_a_page(tmp_path):
    options = ["regime=async", "scale.prompts_per_batch=8", "simulate.gpus=4", "simulate.num_batches=4"]
    options += ["simulate.skipped_batches=1", "simulate.trainer_shares=[0.5]", f"simulate.output={tmp_path}"]
    done = run_command("bapo_lightning.extras.simulation.command", *options)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[-3].startswith("Mean age of trained responses at their start: ")
    assert lines[-2].startswith("Best split: 2 of 4 GPUs train and 2 generate, with max_age=")
    assert lines[-1] == f"Page with pictures: {tmp_path}/index.md"
    files = {path.name for path in tmp_path.iterdir()}
    assert files == {"index.md", "simulate.png", "cells.json", "cells.csv"}


@pytest.mark.parametrize(("overrides", "complaint"), [
    (["simulate.gpus=0"], "simulate.gpus=0 must be a whole number of at least 1, or null"),
    (["simulate.lengths=empirical"], "lengths=empirical needs the lengths of a run; write measured=RUN"),
    (["simulate.trainer_shares=[]"], "simulate.trainer_shares=[] tries nothing; leave it out"),
    (["simulate.num_batches=3"], "leaves nothing of num_batches=3; write num_batches=12"),
    (["simulate.measured=x", "simulate.gpus=8"], "leave out gpus (GPUS=...) or measured"),
    (["simulate.streams=[keep,foo]"], "the item foo, which is none of its values; write one of keep, recom"),
    (["simulate.max_ages=[-1]"], "the item -1, which must be a whole number of at least 0"),
    (["regime=async", "simulate.max_ages=[2]"], "write max_ages of at least 3"),
    (["regime=reuse"], "regime=reuse reuses past groups, which is not simulated; write regime=async"),
])  # fmt: skip
def test_wrong_keys_are_named_with_the_remedy(overrides, complaint):
    with pytest.raises(ConfigError) as refused:
        read_simulate(plain(*overrides))
    assert complaint in str(refused.value)


def test_too_few_and_too_many_gpus_and_runs_that_are_none_are_refused():
    with pytest.raises(ConfigError, match=r"simulate\.gpus=1 cannot be split.*write GPUS=2 or more"):
        world_of(*read_simulate(plain("simulate.gpus=1")))
    told = r"simulate\.gpus=100001: .* on at most 100,000 GPUs; write a smaller"
    with pytest.raises(ConfigError, match=told):
        world_of(*read_simulate(plain("simulate.gpus=100001")))
    with pytest.raises(DataError, match="nowhere"):
        world_of(*read_simulate(plain("simulate.measured=nowhere")))
