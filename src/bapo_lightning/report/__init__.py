"""Tables and plots of finished runs. Reads run folders only: no torch, configuration, training code."""
