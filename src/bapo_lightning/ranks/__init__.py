"""The ranks of a run: how they find each other, and how the leader, rank 0, tells the others what to do."""
