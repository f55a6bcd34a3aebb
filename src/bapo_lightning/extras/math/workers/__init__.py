"""Processes that compare answers by algebra, without trusting them; `pool.VerifierPool` is the way in."""
