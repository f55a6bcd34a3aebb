"""The policy on several ranks: replicated, or sharded by FSDP2."""
