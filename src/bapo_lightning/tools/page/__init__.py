"""HTML pages: one file each, which fetches nothing."""
