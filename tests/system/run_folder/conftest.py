"""The factory of run folders that the tests of reports have."""

from tests.report.conftest import make_run

__all__ = ["make_run"]
