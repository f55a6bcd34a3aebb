"""Two-digit additions by responses that overthink."""
