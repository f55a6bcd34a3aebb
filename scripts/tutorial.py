"""The notebook of docs/tutorial.md: each block of the page is a cell, and the text between them as well.

python scripts/tutorial.py      writes examples/tutorial.ipynb, as `make tables` does
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PAGE, NOTEBOOK = ROOT / "docs" / "tutorial.md", ROOT / "examples" / "tutorial.ipynb"
_BLOCK = re.compile(r"^```(sh|python|yaml)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\]\((?!https?:|#|\.\./)")  # of a page in docs/
_KERNEL = {"display_name": "Python 3", "language": "python", "name": "python3"}


def notebook() -> str:
    """Returns the notebook as it must be: commands run in bash, and files are written."""
    text, *blocks = _BLOCK.split(PAGE.read_text())
    cells = [_cell("markdown", _LINK.sub("](../docs/", text))]
    for language, block, text in zip(blocks[::3], blocks[1::3], blocks[2::3], strict=True):
        cells += [_cell("code", _magic(language, block)), _cell("markdown", _LINK.sub("](../docs/", text))]
    made = {
        "cells": [cell for cell in cells if cell["source"]],
        "metadata": {"kernelspec": _KERNEL, "language_info": {"name": "python"}},
        "nbformat": 4,
        "nbformat_minor": 4,
    }
    return json.dumps(made, indent=1, ensure_ascii=False) + "\n"


def _magic(language: str, block: str) -> str:
    if language == "sh":
        return f"%%bash -e\n{block}"
    return f"%%writefile {block.partition(chr(10))[0].removeprefix('# ')}\n{block}"


def _cell(kind: str, text: str) -> dict[str, Any]:
    cell = {"cell_type": kind, "metadata": {}, "source": text.strip().splitlines(keepends=True)}
    return cell if kind == "markdown" else {**cell, "execution_count": None, "outputs": []}


if __name__ == "__main__":
    NOTEBOOK.write_text(notebook())
