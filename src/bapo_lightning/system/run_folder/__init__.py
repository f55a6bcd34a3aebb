"""Everything about a run on disk: how its files are written, read back, found and locked, and the roles of
its configuration keys. Needs no torch.
"""
