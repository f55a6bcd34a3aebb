"""A toy language and a tiny causal LM in which off-policy reinforcement learning shows the paper's phenomenon
on a laptop.
"""
