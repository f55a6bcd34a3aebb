"""Locks that one rare key opens every day, and a popular key on some days."""
