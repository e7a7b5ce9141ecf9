"""A step's rows: cut over ranks and updates, packed without padding, and put together again.
It imports `streamrl.algorithms`, numpy and torch.
No model and no process group.
"""
