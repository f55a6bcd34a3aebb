"""Evaluated checkpoints in one table."""

import csv
import shutil
from pathlib import Path

import pytest
from tests.cli.evaluations import MODEL, SMALL, run

from bapo_lightning.cli.eval_table import main as eval_table


@pytest.mark.slow
def test_checkpoints_are_compared_in_one_table(trained, tmp_path, capsys):
    for update in (8, 16):
        run(f"checkpoint={trained / f'checkpoints/update{update:06d}'}", *SMALL, f"output_root={tmp_path}")
    run(f"checkpoint={MODEL}", *SMALL, "name=start", f"output_root={tmp_path}")
    assert eval_table([str(tmp_path / "eval/*"), "--reference", "start"]) == 0
    output = capsys.readouterr().out
    assert "+-: minus start" in output and "12 problems x 4" in output
    rows = list(csv.DictReader((tmp_path / "eval/evaluations.csv").open()))
    means = {row["evaluation"]: float(row["value"]) for row in rows if row["metric"] == "avg@4"}
    assert list(means) == ["run-update000008", "run-update000016", "start"]
    for row in (row for row in rows if row["metric"] == "avg@4" and row["evaluation"] != "start"):
        assert float(row["difference_value"]) == pytest.approx(means[row["evaluation"]] - means["start"])
        assert float(row["difference_low"]) <= float(row["difference_value"]) <= float(row["difference_high"])
    assert "| run-update000016 | 4 |" in (tmp_path / "eval/evaluations.md").read_text()


def test_what_cannot_be_compared_is_said(whole, tmp_path, capsys):
    unfinished = Path(shutil.copytree(whole, tmp_path / "unfinished"))
    content = (whole / "samples.jsonl").read_bytes()
    (unfinished / "samples.jsonl").write_bytes(content[:3000])
    assert eval_table([str(unfinished)]) == 2
    assert "no evaluation is finished" in capsys.readouterr().err
    assert eval_table([str(whole), str(unfinished), "--output", str(tmp_path)]) == 0
    assert "left out" in capsys.readouterr().out
    files = {path.name for path in tmp_path.iterdir() if path.is_file()}
    assert files == {"evaluations.csv", "evaluations.md"}
    again = [str(tmp_path / "*"), *map(str, tmp_path.iterdir()), str(whole)]  # as a shell expands it, too
    assert eval_table([*again, "--output", str(tmp_path)]) == 0
    assert eval_table([str(tmp_path / "evaluations.csv")]) == 2
    assert "evaluations.csv'; make one" in capsys.readouterr().err
    assert eval_table([str(whole), "--reference", "nobody"]) == 2
    assert "--reference nobody: nothing finished has this name; it takes model" in capsys.readouterr().err
    assert eval_table([str(tmp_path / "nothing*")]) == 2
    assert "no evaluation is at" in capsys.readouterr().err
