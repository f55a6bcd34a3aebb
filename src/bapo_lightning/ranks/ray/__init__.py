"""A Ray cluster: who joins it, what its nodes must have in common, ranks and verdicts on its nodes. Only
`packages` can be imported without Ray.
"""
