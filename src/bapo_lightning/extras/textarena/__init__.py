"""Games of TextArena: their rules as problems, and the environment that plays them move by move."""
