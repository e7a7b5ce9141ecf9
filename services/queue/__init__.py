"""The queue actor, and rows on their way to those who read them on another node."""
