"""Run folders for the tests of comparisons."""

from tests.report.conftest import make_run  # noqa: F401
