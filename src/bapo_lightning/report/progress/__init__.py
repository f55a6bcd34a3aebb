"""The live display of long work, and tables that fit a console. No torch."""
