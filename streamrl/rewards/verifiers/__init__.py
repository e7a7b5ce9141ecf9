"""Rewards that come with streamrl, each a function of one completion in a file of its own.
It imports `streamrl.errors`, and `streamrl.sandbox` for what runs programs.
No process, no time limit of a batch: the pool has both.
"""
