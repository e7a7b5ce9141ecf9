"""What a run needs to be started elsewhere: files for Docker, Kubernetes and Slurm, filled in from its configuration.
It imports `streamrl.config` and `streamrl.storage`.
It writes nothing and starts nothing: files are text by their names. What is the same for every run is in `templates`.
"""
