"""What a run trains on: tasks, their prompts, and the order in which prompts are taken. Knows no model."""
