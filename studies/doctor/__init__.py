"""Runs that are sick on purpose, each with a healthy twin, which set and judge the doctor's thresholds."""
