"""The engine that samples through transformers."""
