"""What the verbs of the command line do.
It imports `streamrl.services`, `streamrl.buffers` and `streamrl`.
No parsing of words, and no actor.
"""
