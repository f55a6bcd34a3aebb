"""The checks of `make gpu-check`, stage by stage."""
