"""The weight plane: signed manifests, shared-memory versions, and the books of who needs which.

`manifest`, `folder` and `store` import no torch; `tensors` and `shm` do.
"""
