"""The replay queue: the index, durable and awaitable."""
