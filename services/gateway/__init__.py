"""The gateway: an HTTP server over the replicas, the queue and the versions of a run."""
