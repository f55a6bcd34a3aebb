"""Rehearses an experiment: all of it, in small, on this machine, before a run of days."""
