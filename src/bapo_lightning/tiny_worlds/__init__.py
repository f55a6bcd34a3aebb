"""Toy languages and tiny causal LMs that know them by half, which show off-policy phenomena on a laptop."""
