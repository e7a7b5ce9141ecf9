"""Rows as Arrow batches and as numpy columns, and what they must hold."""
