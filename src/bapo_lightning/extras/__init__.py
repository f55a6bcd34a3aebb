"""Features that nothing imports: each can be deleted with its folder, its tests and its files in conf/."""
