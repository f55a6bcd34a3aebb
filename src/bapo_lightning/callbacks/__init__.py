"""Watchers of a run: monitors turn an update into metrics; the others keep records, stop, save and report."""
