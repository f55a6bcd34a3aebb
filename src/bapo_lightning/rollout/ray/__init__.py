"""A fleet of engines as Ray actors on the nodes of a cluster. Only `engine` can be imported without Ray."""
