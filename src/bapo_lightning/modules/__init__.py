"""The policy, its token scores, and the optimizer update."""
