"""Watchers of a run: one concern per file. Monitors turn an update into metrics; the rest keep records,
stop, save and report.
"""
