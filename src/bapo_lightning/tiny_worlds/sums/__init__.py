"""Sums that are out of the model's reach without a calculator."""
