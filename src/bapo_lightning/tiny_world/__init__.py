"""A toy language and a tiny causal LM that show the paper's off-policy phenomena on a laptop."""
