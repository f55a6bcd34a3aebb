"""One finished run: its summary, its plots, what the console shows."""
