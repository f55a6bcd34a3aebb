"""Metrics of turns are compared where a run recorded them, and change nothing where none did."""

from bapo_lightning.report.comparison.files import write_table
from bapo_lightning.report.comparison.page import render_page
from bapo_lightning.report.comparison.settings import collect
from bapo_lightning.report.comparison.table import compare
from bapo_lightning.report.metrics import EXPECTED, OPTIONAL


def compared(make_run, turns):
    """Compares two algorithms over two seeds; `turns` has the mean number of turns of the runs with any."""
    folders = []
    for algorithm in ("grpo", "bapo"):
        for seed in range(2):
            mean = turns.get((algorithm, seed))
            found = {} if mean is None else {"turns/mean": mean, "turns/positive_share_2": 0.5}
            rows = [{"step": step, "train/reward": 0.5, **found} for step in range(4)]
            folders.append(make_run(f"{algorithm}{seed}", rows=rows, algorithm=algorithm, seed=seed))
    return compare(collect(folders))


def test_runs_with_turns_are_compared_by_them(make_run, tmp_path):
    comparison = compared(make_run, {("grpo", 0): 1.0, ("grpo", 1): 2.0, ("bapo", 0): 2.0, ("bapo", 1): 4.0})
    added = [metric.title for metric in comparison.metrics[len(EXPECTED) :]]
    assert added == ["Turns of a conversation", "Positive share, turn 2"]
    result = comparison.results["bapo", "8", "turns/mean", "final"]
    assert result.value is not None and result.value.mean == 3.0
    assert result.difference is not None and result.difference.mean == 1.5
    page = render_page(comparison, "title", "make compare", "today")
    assert "Turns of a conversation" in page and "Positive share, turn 2" in page
    assert "turns/mean,final" in write_table(comparison, tmp_path / "compare.csv").read_text()


def test_runs_without_turns_are_compared_as_ever(make_run, tmp_path):
    comparison = compared(make_run, {})
    assert comparison.metrics == EXPECTED
    page = render_page(comparison, "title", "make compare", "today")
    assert all(metric.title not in page for metric in OPTIONAL)
    assert "turns/" not in write_table(comparison, tmp_path / "compare.csv").read_text()


def test_a_setting_may_be_without_turns_but_not_one_of_its_runs(make_run):
    notes = compared(make_run, {("bapo", 0): 2.0}).limits
    assert "bapo at staleness 8: Turns of a conversation was not recorded by seeds [1]" in notes
    assert not any("grpo" in note and "Turns" in note for note in notes)


def test_shares_end_at_1_and_numbers_of_turns_nowhere():
    limits = {metric.name: metric.limits for metric in OPTIONAL}
    bounded = {metric for metric, found in limits.items() if found == (0.0, 1.0)}
    assert bounded == {metric for metric in limits if "share" in metric}
    assert len(limits) - len(bounded) == 3
