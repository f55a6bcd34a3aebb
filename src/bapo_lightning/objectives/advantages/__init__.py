"""One file per family of advantages: rewards[P, G] of a group each, or a whole rollout batch, -> A[P, G]."""
