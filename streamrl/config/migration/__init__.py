"""From the configurations of other systems (verl, TRL, prime-rl) to one of ours: readers, tables, and the text.
It imports `streamrl.config`.
Nothing of what is read is run, and no file is looked for: text comes in, a configuration and a list come out.
"""
