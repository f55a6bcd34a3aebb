"""Worlds behind OpenEnv servers: servers, sessions, actions, problems, and the environment that plays."""
