"""The weight store actor, and the ways of versions between nodes."""
