"""What the verbs of the command line do.
It imports `services`, `buffers` and `streamrl`.
No parsing of words, and no actor.
"""
