"""The report at W&B: panels of metrics that a run logs, run sets by what the logger writes."""

import json
import re
from itertools import product
from types import SimpleNamespace

import pytest
from tests.callbacks.loggers.test_loggers import stand_in
from tests.commands import train
from tests.report.synthetic_runs import synthetic_run
from tests.wandb_file import history, run_record
from wandb_workspaces.reports.v2 import interface

from bapo_lightning.callbacks.loggers.wandb import STEP
from bapo_lightning.report.metrics import EXPECTED, HELD_OUT
from bapo_lightning.report.style import ALGORITHM_COLOURS
from bapo_lightning.tools.commands import compare as compare_command
from bapo_lightning.tools.comparison import wandb_group, wandb_report
from bapo_lightning.tools.comparison.settings import collect
from bapo_lightning.tools.comparison.table import compare
from bapo_lightning.tools.comparison.wandb_group import WandbGroup
from bapo_lightning.tools.comparison.wandb_report import HELD_OUT_NAMES, make_report

GROUP = WandbGroup("me", "lab", "sweep-quickstart")


def runs(folder, stalenesses=(1, 8)):
    for staleness, algorithm, seed in product(stalenesses, ("grpo", "dapo", "bapo"), (0, 1)):
        name = f"{algorithm}-{staleness}-{seed}"
        yield synthetic_run(folder / name, algorithm, seed, 8, staleness=staleness)


def spec(report):
    return json.loads(report._to_model().spec.model_dump_json(by_alias=True, exclude_none=True))


def grids(content):
    return [block["metadata"] for block in content["blocks"] if block["type"] == "panel-grid"]


@pytest.fixture(scope="module")
def content(tmp_path_factory):
    found = compare(collect(runs(tmp_path_factory.mktemp("runs"))))
    return spec(make_report(found, [GROUP], "A title that is too long for W&B" * 9))


def test_each_staleness_has_a_section_with_the_same_panels(content):
    headings = [block["children"][0]["text"] for block in content["blocks"] if block["type"] == "heading"]
    assert headings == ["Staleness 1", "Staleness 8"]
    for grid in grids(content):
        panels = [panel["config"] for panel in grid["panelBankSectionConfig"]["panels"]]
        assert [panel.get("metrics") or [panel["metricRegex"]] for panel in panels] == [
            [HELD_OUT_NAMES if metric.name == HELD_OUT else metric.logged] for metric in EXPECTED
        ]
        assert {panel["xAxis"] for panel in panels} == {STEP}
        assert {(panel["groupAgg"], panel["groupArea"]) for panel in panels} == {("mean", "minmax")}


def test_run_sets_are_by_group_and_staleness_and_lines_by_algorithm(content, tmp_path):
    logger, _, _ = stand_in(tmp_path)
    logger.describe({"staleness": 8})
    (run_set,) = grids(content)[1]["runSets"]
    group, tag = run_set["filters"]["filters"]
    wanted = {"key": {"section": "run", "name": "group"}, "op": "=", "value": "sweep-quickstart"}
    assert wanted.items() <= group.items()
    assert (tag["key"], tag["op"]) == ({"section": "run", "name": "tags"}, "IN")
    assert set(tag["value"]) <= set(logger.experiment.tags)
    assert run_set["grouping"] == [{"section": "config", "name": "algorithm.value.name"}]
    colours = {key.split("-", 1)[1]: value for key, value in grids(content)[1]["customRunColors"].items()}
    names = ("grpo", "dapo", "bapo")
    assert colours == {f"config:algorithm.value.name:{n}": ALGORITHM_COLOURS[n].lower() for n in names}


def test_settings_and_regimes_of_one_staleness_have_lines_of_their_own(tmp_path):
    for folder in [*runs(tmp_path / "0.4", [8]), *runs(tmp_path / "0.5", [8])]:
        config = json.loads((folder / "config.yaml").read_text())
        config["regime"] = {"partial_tokens": 8 if folder.name.endswith("0") else 16}
        config["algorithm"]["positive_share_target"] = folder.parent.name
        (folder / "config.yaml").write_text(json.dumps(config))
    found = compare(collect(tmp_path.glob("*/*")))
    keys = ["algorithm.name", "algorithm.positive_share_target", "regime.partial_tokens"]
    assert wandb_report.grouping(found.usable) == keys
    (grid,) = grids(spec(make_report(found, [GROUP], "Mine")))
    grouping = [key["name"] for key in grid["runSets"][0]["grouping"]]
    assert grouping == [key.replace(".", ".value.", 1) for key in keys]
    assert len(grid["customRunColors"]) == 3 * 2 * 2


@pytest.mark.slow
def test_a_run_logs_what_the_panels_and_run_sets_look_for(tmp_path):
    folder = tmp_path / "run"
    done = train("logger=wandb", "group=sweep-quickstart", "cpu_threads=1", f"run_folder={folder}")
    assert done.returncode == 0, done.stderr
    (file,) = folder.rglob("*.wandb")
    logged = {name for row in history(file) for name in row}
    assert {metric.logged for metric in EXPECTED} - {"val/*"} | {STEP} <= logged
    names = {name for name in logged if re.search(HELD_OUT_NAMES, name)}
    assert names == {"val/additions/avg@4"}
    group, tags, config = run_record(file)
    assert group == GROUP.name and "staleness-8" in tags
    assert config["algorithm"]["name"] == "bapo"


@pytest.fixture
def server(monkeypatch, tmp_path):
    """W&B's server, with the runs of a group; what was saved there."""
    saved = []

    def execute(api, query, variables):
        saved.append(variables)
        project = {"name": variables["projectName"], "entityName": variables["entityName"]}
        return {"upsertView": {"view": {"id": "abc", "project": project, "spec": variables["spec"]}}}

    found = list(runs(tmp_path / "there", [8]))
    monkeypatch.setattr(wandb_group, "fetch_group", lambda group, target: found[0].parent)
    projects = SimpleNamespace(projects=lambda entity: [SimpleNamespace(name="lab")])
    monkeypatch.setattr(interface, "_get_api", lambda: projects)
    monkeypatch.setattr(interface, "execute_graphql", execute)
    monkeypatch.setattr(interface, "get_app_url", lambda api: "https://wandb.example")
    return saved


def test_compare_makes_it_and_says_where_it_is(server, tmp_path, capsys):
    named = ["wandb:me/lab/sweep-quickstart", "--wandb-report", "--title", "Mine"]
    assert compare_command.main([*named, "--output", str(tmp_path)]) == 0
    assert "  https://wandb.example/me/lab/reports/Mine--abc\n" in capsys.readouterr().out
    (saved,) = server
    assert (saved["entityName"], saved["projectName"], saved["displayName"]) == ("me", "lab", "Mine")
    assert len(grids(json.loads(saved["spec"]))) == 1


def test_what_keeps_it_from_being_made_is_one_sentence(server, tmp_path, capsys, monkeypatch):
    for named in (["outputs/sweep"], ["wandb:me/lab/a", "wandb:me/other/b"]):
        assert compare_command.main([*named, "--wandb-report"]) == 2
        assert "--wandb-report needs groups of one project" in capsys.readouterr().err

    def refuse(*arguments):
        raise RuntimeError("not logged in to W&B\nand more")

    monkeypatch.setattr(interface, "execute_graphql", refuse)
    assert compare_command.main(["wandb:me/lab/a", "--wandb-report", "--output", str(tmp_path)]) == 2
    error = "error: W&B did not take the report (not logged in to W&B); log in with `wandb login`\n"
    assert capsys.readouterr().err.endswith(error)
    monkeypatch.setattr(compare_command, "find_spec", lambda name: None)
    assert compare_command.main(["wandb:me/lab/a", "--wandb-report"]) == 2
    assert '.venv/bin/python -m pip install -e ".[wandb-report]"' in capsys.readouterr().err
