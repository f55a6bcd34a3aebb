"""The configuration of a run: composed, validated, typed."""
