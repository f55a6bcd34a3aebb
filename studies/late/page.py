"""Tables, picture and page of the audit.

    claims.csv   every claim in every world        rules.csv   every rule in every world, means with intervals

The parts of docs/results/late.md between `<!-- NAME: make map MAP=late -->` and `<!-- end -->` are made of
these files; `publish=docs/results` writes them again.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from bapo_lightning.report.intervals import mean_interval
from bapo_lightning.report.markdown import markdown_table
from bapo_lightning.report.paired import paired_difference
from bapo_lightning.system.run_folder.text_file import write_text
from studies.commands import claim_lines, read_csv, write_results
from studies.late.claims import Judged, Tables, judge
from studies.late.picture import draw_audit
from studies.late.plan import LateConfig

Csv = tuple[list[str], list[list[str]]]
QUANTITIES = {  # of rules.csv, and of the page's table; with decimals
    "age": ("mean age", 2),
    "oldest": ("oldest", 0),
    "waste": ("waste", 3),
    "length_ratio": ("trained length", 3),
    "difficulty": ("difficulty", 3),
    "reward": ("reward", 3),
    "hardest": ("reward, hardest quarter", 3),
    "reward_at_time": ("reward in equal time", 3),
    "pace": ("time of an update", 2),
}
TIMED = "reward_at_time"
LESS = "reward in equal time, less no rule's"  # paired by seed
SHOWN = ("mean age", "oldest", "waste", "trained length")  # on the page


def write_pages(config: LateConfig, tables: Tables) -> list[Path]:
    """Writes everything into the output, and into the result pages if `publish` names them."""
    parts = {"claims": claim_table(config, judge(config, tables)), "rules": rule_table(config, tables)}
    output = Path(config.output)
    written = write_results(
        "late",
        config.output,
        config.publish,
        parts,
        lambda folder: draw_audit(config, tables, folder / "late.png"),
        page_parts,
    )
    text = "\n\n".join(page_parts(output).values())
    return [*written, write_text(output / "late.md", f"# Answers that come too late\n\n{text}\n")]


def page_parts(folder: Path) -> dict[str, str]:
    """The parts of the page, by name."""
    claims = claim_lines(read_csv(folder / "claims.csv"))
    table = read_csv(folder / "rules.csv")
    world, bound = table[0]["world"], table[0]["bound"]
    rows = [row for row in table if row["world"] == world]
    bounds = sorted({row["bound"] for row in rows}, key=int)
    shown = []
    for first in (row for row in rows if row["bound"] == bound):
        at = {row["bound"]: row[LESS] for row in rows if row["rule"] == first["rule"]}
        means = [first[head].partition(" ")[0] for head in SHOWN]
        shown.append([first["rule"], *means, *(_marked(at[each]) for each in bounds)])
    heads = ["rule", *SHOWN, *(f"reward, bound {each}" for each in bounds)]
    return {"claims": claims, "rules": markdown_table(heads, shown)}


def _marked(difference: str) -> str:
    """The mean, in bold if the interval excludes 0."""
    mean, _, width = difference.partition(" ± ")
    return f"**{mean}**" if width != "n/a" and abs(float(mean)) > float(width) else mean


def claim_table(config: LateConfig, judged: Sequence[Judged]) -> Csv:
    heads = ["claim", "in words", "world", "quantity", "rule", "against", "difference", "expected", "verdict"]
    rows = [
        [
            *(item.claim.name, item.claim.claim, item.world, item.claim.quantity, item.claim.rule),
            *(f"{item.claim.against}", item.difference.seen(3, "+"), item.claim.expected, item.verdict),
            "yes" if item.is_true else "no",
        ]
        for item in judged
    ]
    return [*heads, "came true"], rows


def rule_table(config: LateConfig, tables: Tables) -> Csv:
    rows, reference = [], next(iter(config.rules))
    for (world, bound), rules in tables.items():
        base = dict(enumerate(rules[reference][TIMED].tolist()))
        for name, values in rules.items():
            means = []
            for key, (_, decimals) in QUANTITIES.items():
                interval = mean_interval(values[key].tolist())
                assert interval is not None
                means.append(interval.seen(decimals))
            less = paired_difference(dict(enumerate(values[TIMED].tolist())), base)
            assert less is not None
            rows.append([world, f"{bound}", config.rules[name].label, *means, less.seen(3, "+")])
    return ["world", "bound", "rule", *(head for head, _ in QUANTITIES.values()), LESS], rows
