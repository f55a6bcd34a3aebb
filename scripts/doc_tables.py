"""Tables of the documents that list algorithms, made of conf/algorithm and of what the code says of each;
`make tables` writes them again.

A table stands between `<!-- NAME: make tables -->` and `<!-- end -->`. Comments at the start of a YAML file
are its cells: `# objective:`, `# advantage:` or `# does:` chooses the table, and `# source:`, `# prepares:`,
`# elsewhere:` and `# cost:` are others. `# as: OTHER` puts it into another's row. Without any, the first line
of it says what it does and where it is published.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from copy import deepcopy
from functools import cache
from pathlib import Path

import torch
import yaml

from bapo_lightning.losses import OPTIONAL, PolicyLoss, policy_loss
from bapo_lightning.objectives.objective import needs_of
from bapo_lightning.report.markdown import markdown_table
from bapo_lightning.system.errors import ConfigError

ROOT = Path(__file__).resolve().parents[1]
ALGORITHMS = ROOT / "conf" / "algorithm"
ELSEWHERE = ("elsewhere", "what published codes do differently")
COLUMNS = {  # label and title, of the tables of docs/methods.md
    "objective": [
        ("objective", "objective of a token"),
        ("source", "source"),
        ("prepares", "prepares"),
        ELSEWHERE,
    ],
    "advantage": [("advantage", "advantage"), ("source", "source"), ELSEWHERE],
    "does": [("does", "what it does"), ("source", "source"), ("cost", "extra cost")],
}
LABELS = "|".join(["as", *(label for table in COLUMNS.values() for label, _ in table)])
PAGES = {**dict.fromkeys(COLUMNS, "docs/methods.md"), "losses": "docs/other_trainers.md"}
ARXIV = r"(\d{4}\.\d{5})"
REFUSED = {  # words of the refusal -> title of the row
    "changes a batch": "refused: they change a batch before it is trained on",
    "changes responses": "refused: they put other responses into a batch",
    "only our policy": "refused: they need a head of the policy, or what an engine notes",
}


def names() -> list[str]:
    """Returns the names of all algorithms."""
    return sorted(path.stem for path in ALGORITHMS.glob("*.yaml") if path.stem != "base")


@cache
def notes(name: str) -> dict[str, str]:
    """Returns the comments of an algorithm's file by their labels; of the first line what it does, and the
    papers that it names before.
    """
    text = (ALGORITHMS / f"{name}.yaml").read_text()
    title, _, meaning = text.partition("\n")[0].removeprefix("# ").partition(": ")
    own = yaml.safe_load(text)
    table = "advantage" if "advantages" in own else "does"
    table = "objective" if own.keys() & {"objective", "bounds", "weighting"} else table
    given = dict(re.findall(rf"^# ({LABELS}): (.*)$", text, re.MULTILINE))
    table = next((label for label in COLUMNS if label in given), table)
    known = {
        "table": table,
        table: (meaning or title).rstrip("."),
        "papers": ", ".join(re.findall(ARXIV, title)),
    }
    return known | given


def methods(table: str) -> str:
    """Returns a table of docs/methods.md."""
    rows = []
    for name in names():
        if "as" not in notes(name) and notes(name)["table"] == table:
            row = [name, *(other for other in names() if notes(other).get("as") == name)]
            papers = dict.fromkeys(paper for each in row if (paper := notes(each)["papers"]))
            cells = {"source": ", ".join(papers), **notes(name)}
            cells["source"] = re.sub(ARXIV, r"[\1](https://arxiv.org/abs/\1)", cells["source"])
            known = (cells.get(label, "").replace("|", r"\|") for label, _ in COLUMNS[table])
            rows.append([quoted(row), *known])
    return markdown_table(["`algorithm=`", *(title for _, title in COLUMNS[table])], rows)


def losses() -> str:
    """Returns the table of docs/other_trainers.md."""
    rows: dict[str, list[str]] = {}
    for name in names():
        if title := as_loss(loss_or_refusal(name)):
            rows.setdefault(title, []).append(name)
    return markdown_table(
        ["", "algorithms"], [(title, quoted(rows[title])) for title in sorted(rows, reverse=True)]
    )


def loss_or_refusal(name: str) -> PolicyLoss | ConfigError:
    """Returns an algorithm's loss for other trainers, or why there is none."""
    try:
        return policy_loss(name, "scale.max_new_tokens=20")
    except ConfigError as error:
        return error


def as_loss(loss: PolicyLoss | ConfigError) -> str:
    """Returns the title of an algorithm's row in that table; empty: it has none."""
    if isinstance(loss, ConfigError):
        return next(title for words, title in REFUSED.items() if words in str(loss))
    if columns := quoted(needed(loss)).replace(", ", " and "):
        graph = " with its graph" * ("entropy_gradient" in needs_of(loss.objective))
        prompt = ", the number of each response's prompt in the update" * (columns == "`group`")
        return f"need {columns}{graph}{prompt}"
    (known, advantages), (own, others) = grpo(), pieces(loss)
    return "are GRPO's loss, with other advantages" * (own == known and others != advantages)


@cache
def grpo() -> tuple[list[str], str]:
    """Returns the pieces of GRPO's loss."""
    return pieces(policy_loss("grpo"))


def pieces(loss: PolicyLoss) -> tuple[list[str], str]:
    """Returns what a loss is made of, and its advantages."""
    return [repr(loss.objective), str(vars(loss.rule)), repr(loss.weighting)], repr(loss.advantages)


def needed(loss: PolicyLoss) -> list[str]:
    """Returns the columns that only some losses read and this one does, in the order of OPTIONAL."""
    one = torch.zeros(1, 1, requires_grad=True)
    found: dict[str, torch.Tensor] = {}
    own = deepcopy(loss)  # some remember what they have seen
    while True:
        try:
            own(one, one.detach(), one.detach(), one.detach() == 0, **found)
        except ConfigError as error:
            (name,) = re.findall(r"reads (\w+), which is not given", str(error))
            found[name] = one.detach().long() if name == "group" else one
            continue
        return [name for name in OPTIONAL if name in found]


def quoted(texts: Iterable[str]) -> str:
    """Returns texts as code, with commas."""
    return ", ".join(f"`{text}`" for text in texts)


def parts(page: str, name: str) -> tuple[str, str, str]:
    """Returns the text before a table of a page, the table, and the text after it."""
    before, begin, rest = (ROOT / page).read_text().partition(f"<!-- {name}: make tables -->\n\n")
    table, end, after = rest.partition("\n\n<!-- end -->")
    assert end, f"{page} has no table {name}"
    return before + begin, table, end + after


def write(page: str, name: str, table: str) -> None:
    """Writes a table of a page again."""
    before, _, after = parts(page, name)
    (ROOT / page).write_text(before + table + after)


def made(name: str) -> str:
    """Returns a table as it must be."""
    return losses() if name == "losses" else methods(name)


if __name__ == "__main__":
    for table, page in PAGES.items():
        write(page, table, made(table))
