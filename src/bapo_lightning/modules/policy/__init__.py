"""The policy: how it is built and how it scores tokens."""
