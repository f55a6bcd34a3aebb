"""Builds policies and scores tokens with them."""
