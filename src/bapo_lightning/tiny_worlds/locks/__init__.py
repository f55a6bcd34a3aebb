"""Locks that one rare key opens on every day, and a popular one on some."""
