"""Environments of the library `verifiers`, served as worlds of OpenEnv from a Python of their own."""
