"""Environments of other people's packages, each in one file: what they say becomes messages.
It imports `streamrl.environments`.
No package is imported before an environment of it is asked for.
"""
