"""Commands: arguments in, objects of the tools out."""
