"""Several runs: what they are, where they run."""
