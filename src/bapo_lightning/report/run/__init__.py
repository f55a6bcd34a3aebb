"""One finished run: its summary, its plots, its console output."""
