"""Pure tensor functions of the method: no state, no configuration, no logging, no communication."""
