"""The replay index: what every group is doing, decided without I/O."""
