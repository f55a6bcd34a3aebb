"""What stale data does to a gradient, by enumeration: `make map MAP=bias`."""
