"""One run as a page: curves, bound choices, where the time goes, what the policy writes."""
