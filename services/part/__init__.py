"""What the actors of a run have in common: deadlines, named loops, logs, deaths, replacements."""
