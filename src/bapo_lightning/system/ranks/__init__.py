"""The ranks of a run: how they find each other, and how the controller (rank 0) commands the workers."""
