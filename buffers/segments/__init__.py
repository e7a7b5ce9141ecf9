"""Segments: the files in which rows lie, written, read, copied between nodes, let go."""
