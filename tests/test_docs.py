"""The documents hold together: links lead somewhere, quoted messages and metric names are those of the
source, the citation parses.
"""

import ast
import re
import tomllib
from functools import cache
from pathlib import Path
from urllib.parse import unquote

import pytest
import yaml

import bapo_lightning

ROOT = Path(__file__).resolve().parents[1]
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")])
METRIC = re.compile(
    r"(train|policy|bapo|entropy_rule|staleness|mismatch|correction|sync|rollout|reuse|time|progress)/[a-z_]+"
)


def name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def prose(text: str) -> str:
    """A document without its fenced blocks."""
    return re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)


def anchors(text: str) -> set[str]:
    """What GitHub calls the headings: lower case, without marks, blanks as hyphens."""
    headings = re.findall(r"^#+ +(.*)$", prose(text), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@cache
def messages() -> str:
    """All texts of the source, what is filled in left out."""
    texts = []
    for file in [*(ROOT / "src").rglob("*.py"), *(ROOT / "scripts").glob("*.py")]:
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                texts.append(node.value)
            elif isinstance(node, ast.JoinedStr):
                texts.append(
                    "".join(part.value if isinstance(part, ast.Constant) else "\0" for part in node.values)
                )
    return "\n".join(texts)


def quoted_messages() -> list[str]:
    """First cells of the troubleshooting tables: what is between backticks and has a blank in it."""
    text = prose((ROOT / "docs" / "troubleshooting.md").read_text())
    cells = re.findall(r"^\| (.*?) \|", text, re.MULTILINE)
    return [quote for cell in cells for quote in re.findall(r"`([^`]+)`", cell) if " " in quote]


@pytest.mark.parametrize("document", DOCUMENTS, ids=name)
def test_every_link_leads_somewhere(document: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", prose(document.read_text())):
        if re.match(r"https?://|mailto:", target):
            continue
        path, _, anchor = unquote(target).partition("#")
        file = (document.parent / path).resolve() if path else document
        assert file.exists(), f"{name(document)} links to {target}, which does not exist"
        if anchor:
            assert anchor in anchors(file.read_text()), (
                f"{name(document)} links to {target}, which has no such heading"
            )


def test_every_document_and_picture_is_linked_from_somewhere() -> None:
    linked = {
        (document.parent / target.partition("#")[0]).resolve()
        for document in DOCUMENTS
        for target in re.findall(r"\]\(([^)\s]+)\)", document.read_text())
    }
    present = {path for path in (ROOT / "docs").rglob("*") if path.suffix in (".md", ".png", ".svg")}
    assert sorted(name(path) for path in present - linked) == []


def test_quotations_are_told_from_each_other() -> None:
    assert len(quoted_messages()) >= 30
    assert "rollout=vllm needs vLLM, which is not installed" in quoted_messages()


@pytest.mark.parametrize("quote", quoted_messages())
def test_a_message_in_troubleshooting_is_one_that_is_printed(quote: str) -> None:
    alarm = re.match(r"alarm (\w+):", quote)
    if alarm:
        assert alarm[1] in yaml.safe_load((ROOT / "conf/callbacks/default.yaml").read_text())["alarms"]
        quote = quote.replace(alarm[1], "...", 1)
    parts = [re.escape(part.strip()) for part in quote.split("...") if part.strip()]
    assert re.search(r"[^\n]*".join(parts), messages()), f"no text of the source reads: {quote}"


def test_every_metric_is_in_the_glossary() -> None:
    glossary = (ROOT / "docs" / "metrics.md").read_text()
    explained: set[str] = set()
    for cell in re.findall(r"^\| (`.*?) \|", glossary, re.MULTILINE):
        for quote in re.findall(r"`([^`]+)`", cell):
            explained |= expanded(quote)
    rooms = [ROOT / "src/bapo_lightning" / room for room in ("callbacks", "modules", "data")]
    nodes = (
        node
        for room in rooms
        for file in room.rglob("*.py")
        for node in ast.walk(ast.parse(file.read_text()))
    )
    logged = {
        node.value for node in nodes if isinstance(node, ast.Constant) and METRIC.fullmatch(str(node.value))
    }
    assert len(logged) > 50
    assert sorted(logged - explained) == []


def expanded(quote: str) -> set[str]:
    """`a/{b,c}_d` is `a/b_d` and `a/c_d`."""
    found = re.search(r"\{([^}]*)\}", quote)
    if not found:
        return {quote}
    return set().union(
        *(expanded(quote[: found.start()] + word + quote[found.end() :]) for word in found[1].split(","))
    )


def test_every_function_of_algorithm_1_is_where_the_readme_says() -> None:
    text = (ROOT / "README.md").read_text()
    table = re.search(r"^\| step of Algorithm 1 .*?\n\n", text, re.MULTILINE | re.DOTALL)
    assert table is not None
    names = re.findall(r"`(\w+(?:\.\w+)+)`", table[0])
    assert len(names) >= 11
    assert [dotted for dotted in names if not is_defined(dotted.split("."))] == []


def is_defined(parts: list[str]) -> bool:
    """Whether a dotted name inside the package is a module, or something that one defines."""
    for end in range(len(parts), 0, -1):
        file = ROOT.joinpath("src", "bapo_lightning", *parts[:end]).with_suffix(".py")
        if file.is_file():
            defined = {getattr(node, "name", None) for node in ast.walk(ast.parse(file.read_text()))}
            return set(parts[end:]) <= defined
    return False


def test_the_citation_is_complete() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert citation["cff-version"] == "1.2.0" and citation["type"] == "software"
    assert {"message", "title", "authors", "abstract"} <= set(citation)
    assert (citation["title"], citation["license"], citation["version"]) == (
        project["name"],
        project["license"],
        bapo_lightning.__version__,
    )
    (paper,) = citation["references"]
    assert paper["type"] == "article" and paper["authors"][0] == {
        "family-names": "Xi",
        "given-names": "Zhiheng",
    }
    assert [identifier["value"] for identifier in paper["identifiers"]] == ["arXiv:2510.18927"]


def test_the_changelog_names_the_version_that_is_installed() -> None:
    text = (ROOT / "CHANGELOG.md").read_text()
    headings = re.findall(r"^## (.*)$", text, re.MULTILINE)
    assert headings and all(
        re.fullmatch(r"\[Unreleased\]|\[\d+\.\d+\.\d+\] - \d{4}-\d{2}-\d{2}", heading) for heading in headings
    )
    assert bapo_lightning.__version__ in text
