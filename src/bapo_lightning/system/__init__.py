"""Errors, values, processes, ranks, files of runs, and everything that comes from outside."""
