"""Several finished runs side by side: table, page, pictures."""
