"""What lies on the disk of a run: journals, checkpoints, lock, configuration. Needs no torch."""
