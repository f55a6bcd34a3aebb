"""From problems to scored groups: what is generated when, and what becomes of it."""
