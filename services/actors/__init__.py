"""What the actors of a run have in common: deadlines, named loops, logs, deaths, replacements.
It imports `streamrl.services.run` and `streamrl`.
No actor: each is the file `actor.py` of its own folder.
"""
