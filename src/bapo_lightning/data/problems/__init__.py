"""From tables, files and the hub to filtered problems and their prompts."""
