"""Faults of a finished or running run: a run folder or another trainer's log -> findings.

May be used from outside: `curves.curves_of`, `causes.diagnose`.
"""
