"""A reward with a fault, which workers on nodes can import."""


def failing(file, problems, completions):
    """A reward that notes its calls in a file."""
    with file.open("a") as notes:
        notes.write("called\n")
    raise TypeError("no such answer")
