"""A rollout replica: the actor, the thread of its engine, its log of completions, its guests."""
