"""Marks, counts and ranges on hand-written pages follow from numbers near them or in tables of commands."""

import csv
import re
from pathlib import Path

import pytest

from studies.map.hypotheses import counts
from studies.map.marks import marked
from studies.map.plan import read_map

ROOT = Path(__file__).resolve().parents[3]
RESULTS = ROOT / "docs" / "results"
README = (ROOT / "README.md").read_text()
VERDICTS = (RESULTS / "verdicts.md").read_text()
SECTIONS = dict(
    reversed(part) for part in re.findall(r"(.*?)\[Every pair\]\(verdicts/(\w+)\.csv\)", VERDICTS, re.DOTALL)
)
INTERVAL = re.compile(r"[+-][0-9.]+ ± [0-9.]+")
PAGES = sorted([*(ROOT / "docs").rglob("*.md"), ROOT / "README.md"])


def rows(text):
    """Cells of all table rows."""
    lines = [line.strip("|") for line in text.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.split("|")] for line in lines]


def table(name):
    """Rows of a table that a command wrote, its heads first."""
    return list(csv.reader((RESULTS / "verdicts" / f"{name}.csv").read_text().splitlines()))


def claims(name):
    """The claims of a map, each with how often it came true and its verdicts, and the pairs of each."""
    tables = {}
    for hypothesis, *pair in table(name)[1:]:
        tables.setdefault(hypothesis, []).append(pair)
    expected = {each.name: each.expected for each in read_map([f"map={name}"]).verdict.hypotheses}
    assert [*expected] == [*tables]
    return [(each, *counts(tables[each], verdict)) for each, verdict in expected.items()], tables


def means_of(name):
    """The endpoint of every method by cell."""
    head, *cells = table(f"{name}_means")
    return {row[0]: dict(zip(head[1:], map(float, row[1:]), strict=True)) for row in cells}


def test_a_mark_is_the_verdict_of_the_interval_before_it():
    pages = [page for page in PAGES if re.search(r"± [0-9.]+ \*{1,2}(more|less|equal)", page.read_text())]
    assert len(pages) >= 2
    for page in pages:
        text = page.read_text()
        assert "<!-- marks:" in text and marked(text) == text, f"python -m studies.map.marks {page}"


def test_marks_follow_holm_over_the_table_and_what_is_small_is_equal():
    table = "<!-- marks: 8 seeds -->\n| a | b |\n|---|---|\n| {} | {} |\n"
    text = table.format("+0.100 ± 0.010 **less**", "-0.001 ± 0.002")
    assert marked(text) == table.format("+0.100 ± 0.010 **more**", "-0.001 ± 0.002 *equal*")
    certain_alone = "+0.020 ± 0.018"
    assert marked(table.format(certain_alone, "0.5")).count("**more**") == 1
    assert "**more**" not in marked(table.format(certain_alone, certain_alone))
    assert marked(text.replace("8 seeds", "2 seeds")).count("**") == 0, "two seeds have no verdict"
    assert marked("| +0.100 ± 0.010 |\n") == "| +0.100 ± 0.010 |\n"


def test_pairs_with_the_numbers_of_another_in_every_cell_are_counted_once():
    table = [["a", "x", "g", "+1 ± 0", "more"], ["b", "x", "g", "+0 ± 0", "equal"]]
    twin = [[cell, "y", *rest] for cell, _, *rest in table]
    other = [["a", "z", "g", "+1 ± 0", "more"], ["b", "z", "g", "-1 ± 0", "less"]]
    assert counts(table + twin, "more") == ("1 of 2", "1 more, 1 equal")
    assert counts(table + twin + other, "more") == ("2 of 4", "2 more, 1 equal, 1 less")


@pytest.mark.parametrize("name", SECTIONS)
def test_counts_are_those_of_the_pairs(name):
    written, tables = claims(name)
    told = [row for row in rows(SECTIONS[name]) if len(row) == 2 and row[0] not in ("claim", "---")]
    assert len(told) == len(written)
    for (hypothesis, came_true, verdicts), (_, said) in zip(written, told, strict=True):
        if (first := re.search(r"in ([0-9]+) of ([0-9]+)", said)) is not None:
            assert f"{first[1]} of {first[2]}" == came_true, said
        for verdict, number in re.findall(r"(more|less|equal|unresolved) in ([0-9]+)", said):
            assert f"{number} {verdict}" in verdicts, said
        shown = {row[3] for row in tables[hypothesis]}
        assert first is not None or (INTERVAL.findall(said) and shown >= set(INTERVAL.findall(said))), said


def test_the_readme_has_the_counts_and_ranges_of_the_pages():
    (_, equal, _), (_, more, _), *_ = claims("reuse")[0]
    assert f"in {more} comparisons, and equal four batches in {equal.partition(' ')[0]}." in README
    means = means_of("random_rewards")

    def gains(world, method):
        _, *ends = (row for cell, row in means.items() if cell.startswith(world))  # in the first none acts
        return sorted(row[method] - row["GRPO, [0.8, 1.2]"] for row in ends)

    low, *_, high = gains("longer", "BAPO 0.5")
    assert f"BAPO 0.5 ends with {low:.2f} to {high:.2f} nats more entropy" in README
    low, *_, high = gains("equal", "BAPO 0.5")
    assert f"0.5 ends between {-low:.2f} less and {high:.2f} more" in README
    low, *_, high = gains("equal", "BAPO 0.55")
    assert f"0.55 with {low:.2f} to {high:.2f} more" in README
    low, *_, high = gains("equal", "BAPO 0.4")
    assert f"0.4 with {-high:.2f} to {-low:.2f} less" in README
    methods, _, *cells = (row for row in rows(VERDICTS) if len(row) == 4 and "REINFORCE" not in row[0])
    for place, (_, *shown) in enumerate(cells[:3], 1):
        row = [row for cell, row in means.items() if cell.startswith("equal")][place]
        assert shown == [f"{row[method] - row['GRPO, [0.8, 1.2]']:+.3f}" for method in methods[1:]]


def test_the_page_of_lags_and_the_readme_have_the_numbers_of_their_tables():
    told = [row for row in rows((RESULTS / "lag.md").read_text()) if len(row) == 3]
    gains = {}
    for column, name in ((1, "lag"), (2, "lag_sgd")):
        shown = {row[4] for row in table(name)}
        said = [interval for row in told for interval in INTERVAL.findall(row[column])]
        assert len(said) > 8 and shown >= set(said), name
        came_true = {each[1] for each in claims(name)[0]}
        assert came_true >= {
            *re.findall(r"^[0-9]+ of [0-9]+", "\n".join(row[column] for row in told[3:]), re.M)
        }
        for _, _cell, *pair, difference, _ in (row for row in table(name) if "lag=12" in row[1]):
            gains.setdefault(tuple(pair), []).append(float(difference.split()[0]))
    bapo, whole = gains["BAPO 0.5", "GRPO, [0.8, 1.2]"], gains["sequence weights <= 2", "BAPO 0.5"]
    assert f"BAPO gets {min(bapo):.2f} to {max(bapo):.2f} more reward than GRPO" in README
    assert f"whole responses {min(whole):.2f} to {max(whole):.2f} more than BAPO" in README


def test_the_exponents_of_the_law_are_those_of_its_table():
    ends = {"table": [], "factored": []}
    for world, *_, told in (row[:9] for row in table("staleness_law")[1:]):
        ends[world].append((float(told.split()[0]), re.findall(r"([0-9.]+)% of", told)))
    (low, _), *_, (high, _) = first = sorted(ends["table"])
    (least, _), *_, (most, _) = second = sorted(ends["factored"])
    worlds = f"{low:+.2f} to {high:+.2f} in one world and {least:+.2f} to {most:+.2f} in the other"
    assert f"from staleness 8 on the exponents are {worlds}" in VERDICTS
    *others, (last, (missing,)) = sorted(first + second)
    assert f"at 8, {missing} % of the resamples have no usable rate" in VERDICTS
    assert f"exponents of {others[0][0]:+.2f} to {others[-1][0]:+.2f}, and one of {last:+.2f}" in README
    assert f"missing in {float(missing):.0f} % of the resamples" in README


def test_the_readme_has_cosines_of_the_atlas():
    rows = list(csv.DictReader((RESULTS / "bias" / "cosines.csv").read_text().splitlines()))
    at = {row["method"]: float(row["age 16"]) for row in rows if row["path"] == "tree-rate=1-early"}
    assert f"(cosine {at['GRPO [0.8, 1.2]']:.2f}, [in an exact" in README
    assert f"within BAPO's along it ({at['BAPO 0.5']:.2f})" in README


def test_the_readme_names_seconds_of_processors_and_of_the_clock():
    text = (RESULTS / "precision.md").read_text()
    ratios = [row[1:3] for row in rows(text) if row[0] == "ours against TRL's fastest, times"]
    (smollm, smollm_clock), (tiny, tiny_clock) = ratios
    said = README.partition("in CPU seconds by a factor of ")[2]
    said = re.sub(r"\[([0-9.]+)\]\([^)]*\)", r"\1", said.partition("\n")[0]).replace(" to ", " .. ")
    on_the_clock = f"on the clock by {smollm_clock} and {tiny_clock}."
    assert said == f"{smollm} for SmolLM2-135M and of {tiny} for a tiny model, {on_the_clock}"
    newer = {
        row[0].partition(",")[0]: row[2].replace(" .. ", " to ") for row in rows(text) if ", ours" in row[0]
    }
    assert (
        f"by {newer['SmolLM2']} for SmolLM2-135M and {newer['tiny']} for a tiny model, on an older" in README
    )


def test_a_difference_of_the_readme_is_bold_if_its_interval_excludes_zero():
    cells = [cell for row in rows(README) for cell in row if INTERVAL.search(cell)]
    assert len(cells) >= 6
    for cell in cells:
        mean, width = map(float, cell.strip("*").split(" ± "))
        assert cell.startswith("**") == (abs(mean) > width), cell


@pytest.mark.parametrize(("page", "name"), [("lag", "lag_locks"), ("late", "late_sums")])
def test_sections_about_a_language_world_have_the_numbers_of_their_tables(page, name):
    _, _, section = (RESULTS / f"{page}.md").read_text().partition("## In a language world")
    said = [row for row in rows(section) if len(row) == 2]
    intervals = {interval for row in said for interval in INTERVAL.findall(row[1])}
    assert intervals and intervals <= {row[4] for row in table(name)}
    came_true = {each[1] for each in claims(name)[0]}
    assert came_true >= {*re.findall(r"^([0-9]+ of [0-9]+);", "\n".join(row[1] for row in said), re.M)}
    (_, *labels), *means = table(f"{name}_means")
    columns = {label: [row[place] for row in means] for place, label in enumerate(labels, 1)}
    assert {row[0]: row[1:] for row in rows(section) if row[0] in columns} == columns
