"""Curves that are recorded from several runs, and shown beside one."""

import io
import json
from statistics import fmean

import pytest
from rich.console import Console
from tests.configuration.compositions import composed

from bapo_lightning.report.run import plots
from bapo_lightning.report.run import recorded as module
from bapo_lightning.report.run.charts import panel_charts
from bapo_lightning.report.run.console import print_summary
from bapo_lightning.report.run.plots import draw_chart
from bapo_lightning.report.run.recorded import NUM_POINTS, find_recorded, protocol_of, record
from bapo_lightning.report.run.summary import compared_to_recorded, write_summary
from bapo_lightning.system.errors import DataError
from bapo_lightning.system.run_folder.record import RunRecord
from bapo_lightning.tools.commands.record import main


@pytest.fixture
def shipped(make_run, tmp_path, monkeypatch):
    """Three runs of GRPO, recorded into the folder that is searched."""
    folders = [make_run(algorithm="grpo", seed=seed, num_updates=60) for seed in range(3)]
    monkeypatch.setattr(module, "FOLDER", tmp_path)
    module._shipped.cache_clear()
    main([*map(str, folders), "--output", str(tmp_path / "mine.json")])
    yield folders
    module._shipped.cache_clear()


def test_a_curve_is_the_mean_over_seeds_of_each_part_of_the_run(shipped):
    found = find_recorded({})
    assert found is not None and (found.label, found.commit) == ("grpo, 3 seeds", "abc")
    band = found.curves["train/reward"]
    assert len(band.mean) == NUM_POINTS and band.steps[:2] == [0.5, 2.5]
    first = [row["train/reward"] for folder in shipped for row in module.read_run(folder).rows[:2]]
    assert band.mean[0] == pytest.approx(sum(first) / 6, abs=1e-5)
    assert all(low < mean < high for low, mean, high in zip(band.lower, band.mean, band.upper, strict=True))
    assert len(found.curves["val/sums/avg@8"].mean) < NUM_POINTS, "parts without a validation are left out"


def test_a_band_has_the_scale_of_its_axis_and_the_limits_of_its_quantity(shipped):
    found = find_recorded({})
    norm, share = found.curves["train/grad_norm"], found.curves["bapo/positive_share"]
    for low, mean, high in zip(norm.lower, norm.mean, norm.upper, strict=True):
        assert low > 0 and low * high == pytest.approx(mean**2, rel=1e-3)
    assert min(share.lower) >= 0 and max(share.upper) <= 1


def test_curves_ship_for_the_protocol_of_make_train():
    found = find_recorded(composed("experiment=quickstart", "algorithm=bapo", "seed=3"))
    assert found is not None and (found.algorithm, len(found.seeds)) == ("grpo", 8)
    assert find_recorded(composed("experiment=quickstart", "regime=on_policy")) is None


def test_only_a_run_of_the_same_protocol_is_shown_with_them(shipped):
    assert find_recorded({"regime": {"epochs": 2}}) is None
    assert find_recorded({"seed": 7, "algorithm": {"name": "bapo"}, "run_folder": "other"}) is not None
    assert protocol_of({"scale": {"name": "tiny"}, "seed": 1})["scale"] == {"name": "tiny"}


def test_the_summary_and_the_plots_show_them(shipped, make_run, monkeypatch):
    folder = make_run("mine", algorithm="bapo", num_updates=60)
    summary = write_summary(folder)
    metrics = summary["compared_to_recorded"]["metrics"]
    assert metrics.keys() == {"train/reward", "policy/entropy", "val/sums/avg@8"}
    console = Console(file=io.StringIO(), width=100, color_system=None)
    print_summary(summary, folder, console)
    text = console.file.getvalue()
    assert "grpo, 3 seeds, recorded at abc" in text and "(recorded 0." in text
    drawn = []
    monkeypatch.setattr(plots, "draw_chart", lambda axes, chart, recorded: drawn.append(recorded.label))
    monkeypatch.setattr(plots.style, "save_png", lambda figure, path: path)
    plots.plot_run(folder)
    assert set(drawn) == {"grpo, 3 seeds"}
    axes = plots.style.new_figure(6.4, 4.0).subplots()
    draw_chart(axes, panel_charts(module.read_run(folder))[0], find_recorded({}))
    assert axes.get_legend_handles_labels()[1][0] == "grpo, 3 seeds"
    module._shipped.cache_clear()
    (module.FOLDER / "mine.json").unlink()
    assert write_summary(folder)["compared_to_recorded"] is None and find_recorded({}) is None


@pytest.mark.parametrize("num_done", [60, 33, 32, 8, 2, 1, 0])
def test_a_run_that_ended_early_is_compared_with_the_same_updates_of_the_recorded_curves(shipped, num_done):
    config = {"scale": {"num_rollout_batches": 12}}  # of 5 updates each
    module._shipped.cache_clear()
    path = module.FOLDER / "mine.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"protocol": protocol_of(config)}))
    rows = module.read_run(shipped[0]).rows[:num_done]
    run = RunRecord(shipped[0], config, {"staleness": 5, "status": "interrupted"}, rows)
    found = compared_to_recorded(run)
    if num_done < 2:  # a part has two updates
        assert found is None
        return
    others = [module.read_run(folder).rows[: 2 * (num_done // 2)] for folder in shipped]
    own, theirs = ([row["train/reward"] for run in runs for row in run] for runs in (others[:1], others))
    reward = found["metrics"]["train/reward"]
    assert reward["mean"] == pytest.approx(fmean(own), abs=1e-5)
    assert reward["recorded_mean"] == pytest.approx(fmean(theirs), abs=1e-5)
    last = 2 * max(1, num_done // 20)  # updates of the last tenth of its parts
    ends = [row["train/reward"] for run in others for row in run[-last:]]
    assert reward["recorded_last"] == pytest.approx(fmean(ends), abs=1e-5)
    assert (found["updates"], found["of"]) == (2 * (num_done // 2), 60)


def test_runs_that_cannot_be_averaged_are_refused(make_run, capsys):
    one, other = make_run(algorithm="grpo"), make_run(algorithm="bapo", seed=1)
    with pytest.raises(DataError, match="at least two of one setting"):
        record([one])
    assert main([str(one), str(other), "--output", "x.json"]) == 2
    assert "differ in more than their seeds" in capsys.readouterr().err
    with pytest.raises(DataError, match="its status is 'failed' after 40 updates"):
        record([one, make_run("failed", algorithm="grpo", seed=2, status="failed")])


def test_runs_shorter_than_their_points_have_a_point_for_each_update(make_run):
    band = record([make_run(seed=seed, num_updates=4) for seed in range(2)]).curves["train/grad_norm"]
    assert band.steps == [0.0, 1.0, 2.0, 3.0] and len(band.mean) == 4
