"""Metrics of k sampled answers per problem, their intervals, and comparisons of evaluations."""
