"""Commands: each builds objects from its arguments and runs them; no logic of its own."""
