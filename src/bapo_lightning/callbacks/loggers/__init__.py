"""Loggers: the destinations of metrics."""
