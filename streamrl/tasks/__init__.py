"""What a run trains on: tasks, their prompts, and the order in which prompts are taken.
It imports `streamrl.config`, `streamrl.models`, `streamrl.observability`, `streamrl.plugin`, `streamrl.rewards`.
No weights, no reward and no queue.
"""
