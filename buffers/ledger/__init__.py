"""The ledger: the queue's decisions, in order, durable."""
