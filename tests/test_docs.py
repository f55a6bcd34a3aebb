"""Checks the documents against the tree: links, quoted messages, metric names, code extracts, citation."""

import ast
import re
import tomllib
from functools import cache
from pathlib import Path
from textwrap import indent
from urllib.parse import unquote

import torch
import yaml
from scripts import doc_tables, docs_site

import bapo_lightning
from bapo_lightning.callbacks.monitors.turns import POSITIVE_SHARE
from bapo_lightning.data.rollouts.observer import RolloutStatistics
from bapo_lightning.objectives.answer_metrics import evaluation_metrics
from bapo_lightning.objectives.divergence import mismatch, mismatch_by_age, mismatch_by_depth, ratio_spread
from bapo_lightning.objectives.entropy_rule import QuadrantMasses
from bapo_lightning.report.metrics import CATALOGUE

ROOT = Path(__file__).resolve().parents[1]
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
LINK = re.compile(r"\]\(([^)\s]+)\)")
METRIC = re.compile(
    r"(train|policy|gradient|bapo|critic|search|entropy_rule|staleness|mismatch|ratio|correction|sync|turns"
    r"|rollout|agent|fleet|reuse|time|progress)/[a-z_]+"
)


def name(path):
    return path.relative_to(ROOT).as_posix()


def prose(text):
    return re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)


def anchors(text):
    """Returns the headings as GitHub's anchors: lower case, without marks, hyphens for blanks."""
    headings = re.findall(r"^#+ +(.*)$", prose(text), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@cache
def tree_of(file):
    return ast.parse(file.read_text())


@cache
def messages():
    """Returns all string literals of the source, f-strings without their fields."""
    texts = []
    for file in [*(ROOT / "src").rglob("*.py"), *(ROOT / "scripts").glob("*.py")]:
        for node in ast.walk(tree_of(file)):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                texts.append(node.value)
            elif isinstance(node, ast.JoinedStr):
                parts = (part.value if isinstance(part, ast.Constant) else "\0" for part in node.values)
                texts.append("".join(parts))
    return "\n".join(texts)


def quoted_messages():
    """Returns the quotes of several words in the first cells of the troubleshooting tables."""
    text = prose((ROOT / "docs" / "troubleshooting.md").read_text())
    cells = re.findall(r"^\| (.*?) \|", text, re.MULTILINE)
    return [quote for cell in cells for quote in re.findall(r"`([^`]+)`", cell) if " " in quote]


def test_every_link_leads_somewhere():
    pages = {document: document.read_text() for document in DOCUMENTS}
    links = [(page, link) for page, text in pages.items() for link in LINK.findall(prose(text))]
    inside = [(page, link) for page, link in links if not re.match(r"https?://|mailto:", link)]
    assert inside
    assert [f"{name(page)}: {link}" for page, link in inside if not leads_somewhere(page, link)] == []


def leads_somewhere(document, link):
    path, _, anchor = unquote(link).partition("#")
    # From the page of a repository, `../../actions` is the list of its workflows' runs.
    path = re.sub(r"^\.\./\.\./actions/(workflows/[\w.]+)(/badge\.svg)?$", r".github/\1", path)
    file = (document.parent / path).resolve() if path else document
    return file.exists() and (not anchor or anchor in anchors(file.read_text()))


def test_every_page_that_the_code_names_exists():
    files = [ROOT / "Makefile", ROOT / "pyproject.toml"]
    files += [file for room in ("src", "conf", "studies", "bench") for file in (ROOT / room).rglob("*.*")]
    named = {
        page
        for file in files
        if file.is_file() and file.suffix in ("", ".py", ".yaml", ".toml")
        for page in re.findall(r"\bdocs/[\w/.]+\.md", file.read_text())
    }
    assert named and sorted(page for page in named if not (ROOT / page).is_file()) == []


def test_every_document_and_picture_is_linked_from_somewhere():
    linked = {
        (document.parent / target.partition("#")[0]).resolve()
        for document in DOCUMENTS
        for target in LINK.findall(document.read_text())
    }
    present = {path for path in (ROOT / "docs").rglob("*") if path.suffix in (".md", ".png", ".svg")}
    assert sorted(name(path) for path in present - linked) == []


def test_quoted_messages_are_found():
    assert len(quoted_messages()) >= 30
    assert "rollout=vllm needs vLLM, which is not installed" in quoted_messages()


def test_every_message_in_troubleshooting_is_one_that_is_printed():
    assert [quote for quote in quoted_messages() if not is_printed(quote)] == []


def is_printed(quote):
    """Returns whether a text of the source reads like this; an alarm must be one of those that there are."""
    alarm = re.match(r"alarm (\w+):", quote)
    if alarm:
        if alarm[1] not in yaml.safe_load((ROOT / "conf/callbacks/default.yaml").read_text())["alarms"]:
            return False
        quote = quote.replace(alarm[1], "...", 1)
    parts = [re.escape(part.strip()) for part in quote.split("...") if part.strip()]
    return re.search(r"[^\n]*".join(parts), messages()) is not None


def glossary():
    text = (ROOT / "docs" / "metrics.md").read_text()
    return re.findall(r"^\| `([a-z_]+/[^`|*{}]*[^`|*{}/])` \| \S", text, re.MULTILINE)


def logged_metrics():
    names = ("algorithms", "callbacks", "modules", "data", "rollout", "extras/agent", "extras/ray")
    rooms = [ROOT / "src/bapo_lightning" / name for name in names]
    nodes = (node for room in rooms for file in room.rglob("*.py") for node in ast.walk(tree_of(file)))
    written = {
        node.value for node in nodes if isinstance(node, ast.Constant) and METRIC.fullmatch(str(node.value))
    }
    nothing = torch.zeros(1)
    composed = {f"mismatch/{key}" for key in mismatch(nothing, nothing)}
    composed |= {f"entropy_rule/{key}" for key in QuadrantMasses._fields}
    composed |= set(RolloutStatistics().metrics())
    counted = nothing == 0
    composed |= {f"ratio/{key}" for key in ratio_spread(nothing, nothing, counted)}
    composed |= {f"turns/{POSITIVE_SHARE}_<turn>"}
    composed |= {"agent/lost_<reason>", "mismatch/abs_logp_diff_age_<ages>", "mismatch/kl_depth_<tokens>"}
    return written | composed


def test_the_glossary_has_every_metric_by_its_own_name_and_no_other():
    logged, explained = logged_metrics(), glossary()
    assert len(logged) > 70
    assert sorted(logged - set(explained)) == []
    of_other_names = {name for name in explained if name.startswith(("val/<set>/", "alarms/<name>"))}
    assert len(of_other_names) == 10
    assert sorted(set(explained) - logged - of_other_names) == []
    assert len(explained) == len(set(explained))


def test_every_metric_of_the_glossary_is_in_a_row_of_the_catalogue_and_every_row_explained():
    places = [re.compile(re.sub("<.*?>", ".+", row.name)) for row in CATALOGUE if not row.source]
    names = [re.sub("[<>]", "", name).replace("@k", "@4") for name in glossary()]
    assert [name for name in names if not any(place.fullmatch(name) for place in places)] == []
    assert [place for place in places if not any(map(place.fullmatch, names))] == []


def test_the_glossary_names_every_bucket():
    text, nothing = (ROOT / "docs" / "metrics.md").read_text(), torch.zeros(1)
    for family, means in (("abs_logp_diff_age_", mismatch_by_age), ("kl_depth_", mismatch_by_depth)):
        names = means(nothing, nothing, nothing, nothing == 0)
        (row,) = re.findall(rf"^\| `mismatch/{family}<.*$", text, re.MULTILINE)
        assert re.findall(r"`(\w+)`", row) == [key.removeprefix(family) for key in names]


def test_the_glossary_has_every_metric_of_an_evaluation():
    names = {f"val/<set>/{key.replace('@1', '@k')}" for key in evaluation_metrics(1)}
    assert sorted(names - set(glossary())) == []


def test_every_function_of_algorithm_1_is_where_its_table_says():
    text = (ROOT / "docs" / "algorithm.md").read_text()
    table = re.search(r"^\| step of Algorithm 1 .*?\n\n", text, re.MULTILINE | re.DOTALL)
    assert table is not None
    names = re.findall(r"`(\w+(?:\.\w+)+)`", table[0])
    assert len(names) >= 11
    assert [dotted for dotted in names if not is_defined(dotted.split("."))] == []


def is_defined(parts):
    for end in range(len(parts), 0, -1):
        file = ROOT.joinpath("src", "bapo_lightning", *parts[:end]).with_suffix(".py")
        if file.is_file():
            defined = {getattr(node, "name", None) for node in ast.walk(tree_of(file))}
            return set(parts[end:]) <= defined
    return False


def fenced_blocks(document, language):
    text = (ROOT / document).read_text()
    blocks = re.findall(r"^```(\w*)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    return [block for found, block in blocks if found == language]


def stripped_lines(text):
    return {line.strip() for line in text.splitlines() if line.strip()}


def test_the_readme_shows_lines_of_the_reference():
    (extract,) = fenced_blocks("README.md", "python")
    code = {line for line in stripped_lines(extract) if not line.startswith("#")}
    source = (ROOT / "src/bapo_lightning/reference.py").read_text()
    assert len(code) >= 10
    assert sorted(code - stripped_lines(source)) == []


def test_the_page_of_the_algorithm_shows_the_drawing_of_the_data_module():
    (drawing,) = fenced_blocks("docs/algorithm.md", "")
    module = ast.parse((ROOT / "src/bapo_lightning/data/data_module.py").read_text())
    assert indent(drawing, "    ").rstrip() in (ast.get_docstring(module) or "")


def test_the_readme_is_short():
    assert len((ROOT / "README.md").read_text().splitlines()) <= 100


def test_the_page_of_methods_has_every_choice():
    """The tables of the losses are checked in tests/test_losses.py."""
    file = "docs/methods.md"
    old = [name for name in doc_tables.COLUMNS if doc_tables.parts(file, name)[1] != doc_tables.made(name)]
    old += ["llms.txt"] * (docs_site.LLMS.read_text() != docs_site.llms())
    assert not old, "make tables writes them again"
    names = {path.stem for path in (ROOT / "conf" / "correction").glob("*.yaml")} - {"base"}
    page = (ROOT / file).read_text()
    assert not {name for name in names if f"`{name}`" not in page}


def test_the_page_of_staleness_has_every_regime():
    rows = re.findall(r"^\|(.*?)\|", (ROOT / "docs" / "staleness.md").read_text(), re.MULTILINE)
    shown = {name for row in rows for name in re.findall(r"`(\w+)`", row)}
    assert {path.stem for path in (ROOT / "conf" / "regime").glob("*.yaml")} - {"base"} <= shown


def test_the_index_lists_every_page():
    text = (ROOT / "docs" / "README.md").read_text()
    pages = {path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.md")}
    listed = re.findall(r"^\| \[([^\]]+)\]\(\1\) \|", text, re.MULTILINE)
    assert sorted(listed) == sorted(pages - {"README.md"})


def test_the_tree_of_contributing_has_every_room_and_nothing_else():
    (tree,) = [block for block in fenced_blocks("CONTRIBUTING.md", "") if "src/bapo_lightning/" in block]
    package, above, listed = ROOT / "src" / "bapo_lightning", [ROOT], set()
    for deep, names in re.findall(r"^( *)([^\s,]+(?:, [^\s,]+)*)", tree, re.MULTILINE):
        level = len(deep) // 4 + 1
        found = [above[level - 1] / name for name in names.split(", ")]
        above[level:] = found[:1]
        listed |= set(found)
    assert [path for path in sorted(listed) if not path.exists()] == []
    rooms = {path.parent for depth in ("*", "*/*") for path in package.glob(f"{depth}/__init__.py")}
    rooms |= {path for path in package.glob("*.py") if not path.name.startswith("__")}
    opened = {package, *(path.parent for path in listed)}  # a room that shows inner rooms shows all
    assert [path for path in sorted(rooms - listed) if path.parent in opened] == []


def test_the_citation_is_complete():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert citation["cff-version"] == "1.2.0" and citation["type"] == "software"
    assert {"message", "title", "authors", "abstract"} <= set(citation)
    named = (project["name"], project["license"], bapo_lightning.__version__)
    assert (citation["title"], citation["license"], citation["version"]) == named
    (paper,) = citation["references"]
    assert paper["type"] == "article"
    assert paper["authors"][0] == {"family-names": "Xi", "given-names": "Zhiheng"}
    assert [identifier["value"] for identifier in paper["identifiers"]] == ["arXiv:2510.18927"]


def test_the_changelog_names_the_version_that_is_installed():
    text = (ROOT / "CHANGELOG.md").read_text()
    headings = re.findall(r"^## (.*)$", text, re.MULTILINE)
    form = re.compile(r"\[Unreleased\]|\[\d+\.\d+\.\d+\] - \d{4}-\d{2}-\d{2}")
    assert headings and all(map(form.fullmatch, headings))
    assert bapo_lightning.__version__ in text
