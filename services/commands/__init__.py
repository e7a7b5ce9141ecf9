"""What the verbs of the command line do."""
