"""Runs are found by path, by glob, in the folder that holds them, and in the list of a sweep."""

import os

from tests.report.synthetic_runs import write_run

from bapo_lightning.system.run_folder.find import (
    common_folder,
    find_runs,
    newest_run,
    swept_folder,
    unfinished,
)


def test_a_folder_of_runs_and_a_run_named_twice_are_found_once(tmp_path):
    first, second = write_run(tmp_path / "runs" / "a", []), write_run(tmp_path / "runs" / "b", [])
    (tmp_path / "runs" / "notes").mkdir()
    (second / "manifest.json").unlink()  # failed while it was set up
    assert find_runs([str(tmp_path / "runs"), str(first)]) == [first, second]


def test_files_next_to_runs_are_passed_over_unless_nothing_else_is_named(tmp_path):
    run, page = write_run(tmp_path / "a", []), tmp_path / "compare.html"
    page.touch()
    assert find_runs([str(run), str(page)]) == [run]
    assert find_runs([str(page)]) == [page]


def test_a_sweep_names_runs_that_never_began(tmp_path):
    run = write_run(tmp_path / "sweep" / "a", [])
    (tmp_path / "sweep" / "sweep.json").write_text('{"runs": {"a": {}, "never": {}}}')
    assert find_runs([str(tmp_path / "sweep")]) == [run, tmp_path / "sweep" / "never"]


def test_what_is_said_of_a_sweep_lies_in_its_folder_wherever_its_runs_are(tmp_path):
    run = write_run(tmp_path / "quickstart" / "a", [])
    (tmp_path / "multirun").mkdir()
    (tmp_path / "multirun" / "sweep.json").write_text('{"runs": {"../quickstart/a": {}}}')
    assert swept_folder([str(tmp_path / "multirun")]) == tmp_path / "multirun"
    assert swept_folder([str(run)]) is swept_folder([str(tmp_path / "multirun"), str(run)]) is None


def test_the_newest_unfinished_runs_are_found(tmp_path):
    for number, status in enumerate(["running", "finished", "interrupted", "failed", "interrupted"]):
        manifest = write_run(tmp_path / f"{number}", [], status=status) / "manifest.json"
        os.utime(manifest, (number, number))
    (tmp_path / "4" / "manifest.json").write_text("torn")
    assert unfinished(tmp_path) == ["3", "2", "0"]
    assert unfinished(tmp_path / "nowhere") == []


def test_the_newest_run_has_the_newest_metrics_whatever_is_drawn_later(tmp_path):
    runs = [write_run(tmp_path / name, []) for name in "abc"]
    for at, run in enumerate(runs):
        for name, seconds in (("config.yaml", at), ("metrics.jsonl", 9 - at), ("manifest.json", at)):
            os.utime(run / name, (seconds, seconds))
    (runs[2] / "view.html").touch()
    assert newest_run([*runs, tmp_path / "planned"]) == runs[0]
    for run in runs:
        (run / "metrics.jsonl").unlink()
    assert newest_run(runs) == runs[2]


def test_the_common_folder_of_one_run_is_the_one_it_lies_in(tmp_path):
    assert common_folder([tmp_path / "a" / "x"]) == tmp_path / "a"
    assert common_folder([tmp_path / "a" / "x", tmp_path / "b" / "y"]) == tmp_path
