"""Rollout engines: one protocol, several implementations, and the hand-over of weights to them."""
