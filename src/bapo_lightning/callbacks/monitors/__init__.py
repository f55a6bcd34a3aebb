"""Callbacks that turn an update into metrics."""
