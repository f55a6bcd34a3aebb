"""Closed-form gradients of all objectives, and what every objective is checked for."""
