"""Several finished runs side by side: table, page, picture, files."""
