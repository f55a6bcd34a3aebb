"""Every figure of the catalogue is drawn from whatever runs there are, also from none."""

import io
import json
import random
from pathlib import Path

import pytest
from rich.console import Console
from tests.report.synthetic_runs import synthetic_row, write_run

from bapo_lightning.report.intervals import mean_interval
from studies.figures.catalogue import figure_names, read_figure, read_protocol
from studies.figures.draw import draw_figures
from studies.figures.findings import ClaimVerdict, Findings, print_findings

PROTOCOL = read_protocol()
FIGURES = [read_figure(name, PROTOCOL) for name in figure_names()]
SEEDS = (1, 2, 3)
TOKENS = 200
PNG = b"\x89PNG\r\n\x1a\n"


def write_variant(folder, variant, seed):
    noise = random.Random(f"{variant} {seed}")
    algorithm = PROTOCOL.variants[variant].overrides["algorithm"]
    rows = [synthetic_row(step, 24, algorithm, noise) for step in range(24)]
    for row in rows:
        predicted = noise.gauss(0, 1e-4)
        row |= {
            "entropy_rule/predicted_delta": predicted,
            "entropy_rule/measured_delta": 100 * predicted + noise.gauss(0, 1e-3),
            "bapo/positive_token_fraction": noise.uniform(0.38, 0.42),
        }
    run = write_run(folder / f"{variant}-s{seed}", rows, algorithm, seed)
    ratios = [noise.lognormvariate(0, 0.3) for _ in range(TOKENS)]
    probabilities = sorted(noise.random() for _ in ratios)
    entropy = [1 - p for p in probabilities]
    # Two tokens change places, `seed` ranks apart: seeds whose values are all equal have no verdict.
    entropy[0], entropy[seed] = entropy[seed], entropy[0]
    record = {"step": 0, "ratio": ratios, "probability": probabilities, "entropy": entropy}
    (run / "tokens.jsonl").write_text(json.dumps(record) + "\n")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    target = tmp_path_factory.mktemp("figures")
    for variant in PROTOCOL.variants:
        for seed in SEEDS:
            write_variant(target, variant, seed)
    return target


def runs_of(folder):
    return {path.name: path.name.rpartition("-")[0] for path in sorted(folder.iterdir()) if path.is_dir()}


@pytest.mark.slow
def test_all_figures_and_their_page(folder, capsys):
    findings = draw_figures(FIGURES, folder, runs_of(folder), ["seed=1,2,3"])
    assert set(findings.pictures) == set(figure_names())
    assert all(path.read_bytes().startswith(PNG) for path in findings.pictures.values())
    assert len(findings.verdicts) == sum(len(figure.claims) for figure in FIGURES)
    assert all(verdict.interval is not None and verdict.adjusted is not None for verdict in findings.verdicts)
    page = (folder / "figures.md").read_text()
    assert page.count("\n## ") == len(FIGURES)
    assert '`make figures FIG=2 ARGS="seed=1,2,3"`: 12 runs, seeds 1, 2, 3' in page
    values = json.loads((folder / "figures.json").read_text())["values"]
    correlation = values["grpo_8"]["probability_entropy_correlation"]
    ranks = {seed: -1 + 12 * seed**2 / (TOKENS * (TOKENS**2 - 1)) for seed in SEEDS}  # Spearman's formula
    assert correlation == {str(seed): pytest.approx(value, abs=1e-12) for seed, value in ranks.items()}
    print_findings(findings)
    assert capsys.readouterr().out.count("BAPO above clip") >= 1


@pytest.mark.parametrize("name", ["2", "5", "8", "11"])
def test_a_figure_is_drawn_and_judged_again_without_its_runs(folder, name, tmp_path):
    figures = [figure for figure in FIGURES if figure.name == name]
    findings = draw_figures(figures, folder, runs_of(folder), ["seed=1,2,3"])
    curves = (folder / "curves.csv").rename(tmp_path / "curves.csv")
    assert curves.read_text().startswith('# make figures ARGS="seed=1,2,3"; commit ')
    draw_figures(figures, tmp_path / "again", {}, ["seed=1,2,3"], curves)
    for file in ("figures.json", "figures.md", findings.pictures[name].name):
        assert (tmp_path / "again" / file).read_bytes() == (folder / file).read_bytes(), file


@pytest.mark.parametrize(("width", "rows_of_a_claim"), [(60, 2), (80, 2), (160, 1)])
def test_verdicts_fit_and_no_number_is_wrapped(width, rows_of_a_claim):
    figure = next(figure for figure in FIGURES if figure.name == "5")
    interval = mean_interval([0.10, 0.12, -0.3])
    judged = interval, "the opposite holds", 0.03, 0.5
    verdicts = [ClaimVerdict("5", claim, *judged) for claim in figure.claims]
    console = Console(file=io.StringIO(), width=width, color_system=None)
    print_findings(Findings([figure], {"5": Path("figure_5.png")}, verdicts, {}, ()), console)
    lines = [line.rstrip() for line in console.file.getvalue().splitlines()]
    assert all(len(line) <= width for line in lines)
    numbers = [line for line in lines if "-0.027 ± 0.589" in line]
    assert len(numbers) == len(figure.claims)
    assert all(line.startswith("5 ") == (rows_of_a_claim == 1) for line in numbers)


@pytest.mark.parametrize("figure", FIGURES, ids=lambda figure: figure.name)
def test_a_figure_without_runs_says_so_instead_of_failing(figure, tmp_path):
    names = {f"{variant}-s1": variant for variant in figure.variants}
    findings = draw_figures([figure], tmp_path, names, [])
    assert findings.pictures[figure.name].read_bytes().startswith(PNG)
    assert {verdict.verdict for verdict in findings.verdicts} == {"no data"}
    assert "seeds none" in (tmp_path / "figures.md").read_text()
