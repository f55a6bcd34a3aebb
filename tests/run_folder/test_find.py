"""Runs are found by path, by glob, in the folder that holds them, and in the list of a sweep."""

from __future__ import annotations

from pathlib import Path

from tests.report.synthetic_runs import write_run

from bapo_lightning.run_folder.find import common_folder, find_runs


def test_a_folder_of_runs_and_a_run_named_twice_are_found_once(tmp_path: Path) -> None:
    first, second = write_run(tmp_path / "runs" / "a", []), write_run(tmp_path / "runs" / "b", [])
    (tmp_path / "runs" / "notes").mkdir()
    (second / "manifest.json").unlink()  # failed while it was set up
    assert find_runs([str(tmp_path / "runs"), str(first)]) == [first, second]


def test_a_sweep_names_runs_that_never_began(tmp_path: Path) -> None:
    run = write_run(tmp_path / "sweep" / "a", [])
    (tmp_path / "sweep" / "sweep.json").write_text('{"runs": {"a": {}, "never": {}}}')
    assert find_runs([str(tmp_path / "sweep")]) == [run, tmp_path / "sweep" / "never"]


def test_the_common_folder_of_one_run_is_the_one_it_lies_in(tmp_path: Path) -> None:
    assert common_folder([tmp_path / "a" / "x"]) == tmp_path / "a"
    assert common_folder([tmp_path / "a" / "x", tmp_path / "b" / "y"]) == tmp_path
