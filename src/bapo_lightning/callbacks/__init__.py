"""Watchers of a run: monitors turn an update into metrics; the rest keep records, stop, save and report."""
