"""Environments, which answer the policy between its turns. Other packages use `environment` and name the
rest by `_target_`.
"""
