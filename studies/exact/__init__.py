"""Policies so small that expected reward and entropy are sums over all answers."""
