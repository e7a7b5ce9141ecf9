"""The reward stage."""
