"""Programs that run inside the sandbox, under whatever Python is there: the standard library alone, one file each.
It imports nothing of streamrl.
They are read as texts. Nothing outside calls them.
"""
