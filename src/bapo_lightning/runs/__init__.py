"""Builds the objects of a run and runs it."""
