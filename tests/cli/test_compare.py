"""The command: folders, globs, sweeps with runs that never began, groups of W&B, and nothing to compare."""

import csv
import json
import random
from types import SimpleNamespace

import pytest
from tests.report.synthetic_runs import synthetic_row, write_run

from bapo_lightning.system.errors import DataError
from bapo_lightning.system.run_folder.record import read_run
from bapo_lightning.tools.commands import compare
from bapo_lightning.tools.commands.compare import main
from bapo_lightning.tools.comparison.wandb_group import fetch_group, group_of


def rows(algorithm, seed):
    noise = random.Random(f"{algorithm} {seed}")
    return [synthetic_row(step, 10, algorithm, noise) for step in range(10)]


@pytest.fixture
def folder(tmp_path):
    for algorithm in ("grpo", "bapo"):
        for seed in (0, 1):
            write_run(tmp_path / "sweep" / f"{algorithm}-{seed}", rows(algorithm, seed), algorithm, seed)
    return tmp_path / "sweep"


def test_a_folder_of_runs_becomes_a_page_a_picture_and_tables_next_to_them(folder, capsys):
    (folder / "sweep.json").write_text('{"runs": {"bapo-0": {}, "bapo-2": {}}}')
    assert main([str(folder)]) == 0
    names = {path.name for path in folder.iterdir() if path.is_file()} - {"sweep.json"}
    assert names == {"compare.html", "compare.csv", "compare.json"}
    assert "4 of 5 runs" in capsys.readouterr().out
    page = (folder / "compare.html").read_text()
    assert "4 of 5 runs compared" in page and "bapo-2" in page
    results = {
        (line["setting"], line["metric"], line["statistic"]): line
        for line in csv.DictReader((folder / "compare.csv").open())
    }
    final = results["bapo", "train/reward", "final"]
    assert (final["num_seeds"], final["reference"], final["num_pairs"]) == ("2", "grpo", "2")
    assert float(final["difference"]) > 0 and final["p_value"] == "", "two seeds have no verdict"
    curves = json.loads((folder / "compare.json").read_text())["curves"]
    named = {(curve["setting"], curve["metric"]): curve for curve in curves}
    assert named["grpo", "train/reward"]["updates"] == list(range(10))


def test_output_reference_and_title_can_be_chosen(folder, tmp_path):
    options = ["--output", str(tmp_path / "out"), "--reference", "bapo", "--title", "Mine"]
    assert main([str(folder / "*-*"), *options]) == 0
    page = (tmp_path / "out" / "compare.html").read_text()
    assert "<title>Mine</title>" in page and not (folder / "compare.html").exists()
    assert next(csv.DictReader((tmp_path / "out" / "compare.csv").open()))["reference"] == "bapo"


def test_one_run_gets_its_summary_and_plots_again(tmp_path, capsys, monkeypatch):
    folder, drawn = write_run(tmp_path / "run", rows("bapo", 0)), []
    monkeypatch.setattr(compare, "plot_run", lambda *places: drawn.append(places))
    assert main([str(folder)]) == 0
    assert (folder / "summary.json").exists() and drawn == [(folder, None)]
    assert "finished after 10 updates" in capsys.readouterr().out


@pytest.mark.parametrize(("arguments", "words"), [
    (["empty"], "'empty' is not a run folder: it has no manifest.json and no config.yaml"),
    (["nowhere"], "'nowhere', which does not exist"),
    (["no*"], "no folder matches 'no*'"),
    (["compare.csv"], "'compare.csv' is a file, not a run folder"),
    (["sweep", "--reference", "gpro"],
     "--reference gpro: nothing finished has this name; did you mean grpo? it takes grpo, bapo"),
    (["wandb:me/project"], "wandb:me/project names no group; write wandb:ENTITY/PROJECT/GROUP"),
])  # fmt: skip
def test_what_cannot_be_compared_is_one_clear_error(folder, tmp_path, monkeypatch, capsys, arguments, words):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    (tmp_path / "compare.csv").touch()
    assert main(arguments) == 2
    assert words in capsys.readouterr().err


class ScriptedApi:
    def __init__(self, found):
        self.found = found
        self.asked = ()

    def runs(self, path, filters):
        self.asked = (path, filters)
        return self.found


def test_a_group_of_wandb_is_read_back_as_run_folders(tmp_path):
    history = [
        {"_step": 0, "trainer/global_step": 0, "train/reward": 0.5, "val/x/avg@4": None},
        {"trainer/global_step": 0, "rollouts": {}},
    ]
    manifest = {"algorithm": "bapo", "seed": 3, "staleness": 8, "status": "running"}
    config = {"seed": 3, "algorithm": {"name": "bapo"}, "manifest": manifest, "_wandb": {}}
    run = SimpleNamespace(id="abc", config=config, state="finished", summary={"status": "interrupted"})
    run.scan_history = lambda: iter(history)
    api = ScriptedApi([run])
    folder = fetch_group(group_of("me/lab/tiny/replay"), tmp_path, api)
    assert (folder.name, api.asked) == ("me-lab-tiny-replay", ("me/lab", {"group": "tiny/replay"}))
    record = read_run(folder / "abc")
    assert record.config == {"seed": 3, "algorithm": {"name": "bapo"}}
    assert record.manifest == {**manifest, "status": "interrupted"}
    assert record.rows == [{"step": 0, "train/reward": 0.5}]


@pytest.mark.parametrize(
    "name", ["../../evil", "/tmp/evil", "..", "", "a/b", "a\\b", ".x", "x" * 300, "a\0b", 7]
)
def test_the_name_that_a_server_gives_a_run_is_never_a_path(tmp_path, name):
    run = SimpleNamespace(id=name, config={}, state="finished", summary={}, scan_history=lambda: iter(()))
    folder = fetch_group(group_of("me/lab/tiny"), tmp_path / "in" / "here", ScriptedApi([run]))
    assert [path.name for path in folder.iterdir()] == ["run+0"] and len(list(tmp_path.rglob("*.json"))) == 1


@pytest.mark.parametrize("changes", [
    {"config": [1]}, {"config": {"a": object()}}, {"summary": 5}, {"scan_history": lambda: iter([5])},
    {"scan_history": lambda: iter([{"trainer/global_step": 1, "x": {1: 2, None: object()}, (1, 2): 3}])},
    {"scan_history": lambda: 1 / 0}, {"config": {"manifest": {"wall_seconds": float("nan")}}},
])  # fmt: skip
def test_a_run_that_a_server_describes_oddly_is_one_sentence(tmp_path, changes):
    whole = {"id": "a", "config": {}, "state": "finished", "summary": {}, "scan_history": lambda: iter(())}
    with pytest.raises(DataError, match="wandb:me/lab/tiny: the run 'a' cannot be read back"):
        fetch_group(group_of("me/lab/tiny"), tmp_path, ScriptedApi([SimpleNamespace(**whole | changes)]))


def test_an_empty_group_and_a_server_that_does_not_answer_are_reported(tmp_path):
    with pytest.raises(DataError, match="the project me/lab has no run in the group 'tiny/replay'"):
        fetch_group(group_of("me/lab/tiny/replay"), tmp_path, ScriptedApi([]))
    with pytest.raises(DataError, match=r"could not be read \(.*\); log in with `wandb login`"):
        fetch_group(group_of("me/lab/tiny/replay"), tmp_path, SimpleNamespace())
