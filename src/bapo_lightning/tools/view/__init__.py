"""One run as a page: curves, bound choices, the time split, what the policy writes."""
