"""The map of where clipping bounds matter: cells of exact worlds, trained and compared."""
