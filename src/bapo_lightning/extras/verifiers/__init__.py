"""Environments of the library `verifiers`, served as OpenEnv worlds from a separate Python."""
