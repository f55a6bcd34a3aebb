"""Environments: who answers the policy between its turns. Other rooms use `environment`, and name the rest by
`_target_`.
"""
