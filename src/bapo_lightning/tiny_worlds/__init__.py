"""Toy languages, and tiny causal LMs that half know them, which show off-policy phenomena on a laptop."""
