"""One update as a file, and again under any algorithm."""
