"""The policy sharded over ranks."""
