"""Pages of HTML: one file each, which fetches nothing."""
