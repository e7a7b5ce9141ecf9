"""The controller, and what keeps each kind of part."""
