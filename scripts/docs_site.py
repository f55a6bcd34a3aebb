"""The site of docs/ for mkdocs, and llms.txt; the groups of docs/README.md are the sections of both.

python scripts/docs_site.py     writes llms.txt, as `make tables` does
"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
DOCS, LLMS = ROOT / "docs", ROOT / "llms.txt"
_OUTSIDE = re.compile(r"\[([^\]]+)\]\(((?:\.\./)+(?:examples|scripts|src|conf|\.github|[A-Z]+\.)[^)]*)\)")
_NOTE = "AGENTS.md of the repository has the commands and rules for coding agents, and README.md the results."


def groups() -> dict[str, list[tuple[str, str]]]:
    """Returns the pages of docs/README.md with their contents, by group."""
    _, *sections = re.split(r"^## ", (DOCS / "README.md").read_text(), flags=re.MULTILINE)
    row = re.compile(r"^\| \[.*?\]\((.*?)\) \| (.*) \|$", re.MULTILINE)
    return {text.partition("\n")[0]: row.findall(text) for text in sections}


def title(page: str) -> str:
    """Returns the title of a page of docs/."""
    return (DOCS / page).read_text().partition("\n")[0].removeprefix("# ")


def llms() -> str:
    """Returns llms.txt as it must be (llmstxt.org)."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    lines = [f"# {project['name']}", "", f"> {project['description']}", "", _NOTE]
    for group, pages in groups().items():
        links = (f"- [{title(page)}](docs/{page}): {contents}" for page, contents in pages)
        lines += ["", f"## {group}", "", *links]
    return "\n".join(lines) + "\n"


def home() -> str:
    """Returns the README of the repository for the site, with links as from docs/, and all pages below it.
    Badges are left out: they need a server, and the page of a repository.
    """
    text = re.sub(r"^\[?!\[.*badge.*\n\n", "", (ROOT / "README.md").read_text(), flags=re.MULTILINE)
    text = text.replace("](docs/README.md)", "](#all-pages)")
    text = re.sub(r"\]\((?!https?:|#)(docs/)?", lambda match: "](" if match[1] else "](../", text)
    index = (DOCS / "README.md").read_text().replace("# Documentation", "# All pages")
    return text + "\n" + re.sub(r"^#", "##", index, flags=re.MULTILINE)


def on_config(config: Any, **_: Any) -> Any:
    """Makes the navigation of the groups; a page has its own title."""
    config.nav = [{"Home": "README.md"}]
    config.nav += [{group: [page for page, _ in pages]} for group, pages in groups().items()]
    return config


def on_page_markdown(markdown: str, page: Any = None, **_: Any) -> str:
    """Returns the text of a page, with `path` in place of links to files that the site does not have.
    Measurements are left out of the search.
    """
    name = page.file.src_uri if page else ""
    if name.startswith("results/"):
        page.meta["search"] = {"exclude": True}
    return _OUTSIDE.sub(_as_text, home() if name == "README.md" else markdown)


def on_post_build(config: Any, **_: Any) -> None:
    """Writes llms.txt with links to the pages of the site."""
    text = re.sub(r"\(docs/([\w/]+)\.md\)", r"(\1/)", llms())
    Path(config.site_dir, "llms.txt").write_text(text)


def _as_text(match: re.Match[str]) -> str:
    path = match[2].replace("../", "")
    return f"`{path}`" if match[1].strip("`") == path else f"{match[1]} (`{path}`)"


if __name__ == "__main__":
    LLMS.write_text(llms())
