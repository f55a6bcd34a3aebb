"""The command: what it needs and trains, what it draws, what it says of wrong input."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from tests.children import forked_children

from bapo_lightning.system.errors import ConfigError
from bapo_lightning.tools.sweeps.plan import compose_runs
from studies.figures.__main__ import help_text, main
from studies.figures.catalogue import FOLDER, figure_names, read_figure, read_protocol
from studies.figures.plan import read_figures_plan

PNG = b"\x89PNG\r\n\x1a\n"


def test_every_figure_of_the_paper_is_there():
    numbered = {name for name in figure_names() if name.isdigit()}
    assert numbered == {"2", "4", "5", "7", "8", "9", "10", "11", "12"}
    assert {"entropy_rule", "contribution"} <= set(figure_names())


def test_a_run_that_several_figures_show_is_trained_once():
    plan = read_figures_plan(["figure=2,9"])
    assert len(plan.runs.jobs) == 25
    assert plan.variant_of_run["grpo_8-s3"] == "grpo_8"
    first = [run for run in plan.runs.jobs if run.endswith("-s1")]
    assert first == ["grpo_1-s1", "grpo_2-s1", "grpo_4-s1", "grpo_8-s1", "bapo_8-s1"]
    whole = read_figures_plan([])
    assert plan.runs.jobs.items() <= whole.runs.jobs.items()
    # No variant is trained for nothing.
    assert set(whole.variant_of_run.values()) == set(read_protocol().variants)


@pytest.mark.slow
def test_variants_differ_from_each_other_in_what_they_name_alone():
    plan = read_figures_plan(["seed=1"])
    named = ("grpo_8_slow-s1", "wide_high-s1", "wide_low-s1", "higher_4-s1")
    configs = compose_runs(replace(plan.runs, jobs={run: plan.runs.jobs[run] for run in named}))
    assert {config["scale"]["num_rollout_batches"] for config in configs.values()} == {32}
    assert configs["grpo_8_slow-s1"]["optimizer"]["optimizer"]["lr"] == 1.2e-4
    bounds = [config["algorithm"]["bounds"] for config in configs.values()]
    assert [(each["low"], each["high"]) for each in bounds[1:]] == [(0.8, 1.5), (0.5, 1.2), (0.8, 1.28)]


def test_changes_hold_for_all_runs_and_have_a_folder_of_their_own():
    plan = read_figures_plan(["figure=8", "scale.num_rollout_batches=2", "seed=7", "output_root=elsewhere"])
    assert plan.runs.folder == Path("elsewhere/figures-scale.num_rollout_batches_2")
    assert set(plan.runs.jobs) == {"bapo_8-s7", "bapo_target_40-s7"}
    assert "scale.num_rollout_batches=2" in plan.runs.common


@pytest.mark.parametrize(("arguments", "complaint"), [
    (["figure="], "write one of 2, 4, 5"),
    (["figure=3"], "figure=3 is no figure; write one of 2, 4, 5"),
    (["figure=2", "algorithm=bapo"], "is set by the variants of studies/conf/figures/protocol.yaml"),
    (["seed=one"], "seed=one must be whole numbers"),
    (["2"], "2 cannot be read; write KEY=VALUE"),
    (["model.path={"], "model.path={ cannot be read (while parsing a flow node); write KEY=VALUE in YAML"),
    pytest.param(["figure=2", "scale.nothing=1"], "scale.nothing", marks=pytest.mark.slow),
    (["launcher=cloud"], "hydra/launcher=cloud is not a choice here; it takes local"),
])  # fmt: skip
def test_wrong_input_is_one_error_before_anything_runs(arguments, complaint, tmp_path, capsys):
    assert main([*arguments, f"output_root={tmp_path}"]) == 2
    assert complaint in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_a_figure_with_mistakes_names_its_file_and_all_of_them(tmp_path):
    content = yaml.safe_load((FOLDER / "9.yaml").read_text())
    content["draw"] = "pies"
    content["claims"] = [
        {"says": "x", "value": "luck", "more": "bapo_8", "less": "ppo"},
        {"says": "y", "value": "reward_last", "of": "bapo_8"},
    ]
    (tmp_path / "9.yaml").write_text(yaml.safe_dump(content))
    with pytest.raises(ConfigError) as caught:
        read_figure("9", read_protocol(), tmp_path)
    text = str(caught.value)
    assert all(part in text for part in ("9.yaml", "variant ppo", "value luck", "pies", "'y' must name"))


@pytest.mark.slow
def test_figures_are_trained_drawn_and_judged(tmp_path, capsys):
    sizes = ["scale.num_rollout_batches=4", "scale.prompts_per_batch=8", "scale.validation_problems=8"]
    arguments = ["figure=4,5", "seed=1,2", *sizes, f"output_root={tmp_path}"]
    with forked_children():
        assert main(arguments) == 0
    (folder,) = tmp_path.iterdir()
    for name in ("4", "5"):
        assert (folder / f"figure_{name}.png").read_bytes().startswith(PNG)
    page = (folder / "figures.md").read_text()
    assert "## Figure 5: Importance ratio, probability and entropy of tokens under GRPO" in page
    assert "seeds 1, 2" in page
    found = json.loads((folder / "figures.json").read_text())
    assert found["sources"]["4"]["num_runs"] == 2
    assert {claim["verdict"] for claim in found["claims"]} <= {"holds", "the opposite holds", "not shown"}
    assert set(found["values"]["grpo_8"]["distance_probability_correlation"]) == {"1", "2"}
    assert "2 runs" in capsys.readouterr().out
    assert main([*arguments[1:], "figure=5"]) == 0
    assert "2 finished before" in capsys.readouterr().out


def test_help_lists_every_figure_by_its_title():
    lines = help_text().splitlines()
    assert lines[0] == "usage: python -m studies.figures [figure=2,9] [seed=1,2] [KEY=VALUE ...]"
    for name in figure_names():
        assert any(len(line.split()) > 3 for line in lines if line.strip().startswith(f"{name} ")), name
    assert not any("protocol" in line for line in lines)
