"""A place to run programs that nobody has read: what a model writes, and the tests of data sets.
It imports `streamrl.system`, `streamrl.config` and `streamrl.errors`.
It knows programs and limits. No reward and no environment.
"""
