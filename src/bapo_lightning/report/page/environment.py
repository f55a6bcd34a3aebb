"""Templates of pages."""

from __future__ import annotations

from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined

_SHARED = Path(__file__).with_name("templates")


def page_environment(templates: Path) -> Environment:
    """Environment with the templates in `templates` and the shared style sheet and script for curves.

    It escapes everything: folder names, settings, errors and samples are text that others wrote.
    """
    return Environment(
        loader=FileSystemLoader([templates, _SHARED]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
