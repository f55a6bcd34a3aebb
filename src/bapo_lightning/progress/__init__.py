"""Where long work stands: the phases of this process, and its one live display. No torch."""
