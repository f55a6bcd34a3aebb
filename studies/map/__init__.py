"""The map of where clipping bounds matter: verdicts, pictures and page."""
