"""Sums that the model cannot compute without a calculator."""
