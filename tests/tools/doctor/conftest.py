"""Run folders for the tests of the doctor."""

from tests.report.conftest import make_run

__all__ = ["make_run"]
