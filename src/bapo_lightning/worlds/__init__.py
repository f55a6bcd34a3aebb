"""Small worlds in which the effect of clipping bounds can be measured."""
