"""For mkdocs: links from `docs/` to files that the site does not have become text."""

from __future__ import annotations

import re
from typing import Any

_OUTSIDE = re.compile(r"\[([^\]]+)\]\((\.\./(?:\.\./)*(?:examples|src|conf|[A-Z]+\.)[^)]*)\)")


def on_page_markdown(markdown: str, **_: Any) -> str:
    """The text of a page with such links as `path`."""
    return _OUTSIDE.sub(lambda match: f"{match[1]} (`{match[2].replace('../', '')}`)", markdown)
