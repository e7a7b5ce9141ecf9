"""The pieces of the simulator: its settings and report, its books, and the policy it drives."""
