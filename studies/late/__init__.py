"""Who is left out by rules for data that come too late: `make map MAP=late`."""
