"""The weight plane: signed manifests, versions in shared memory, and the books of who needs which.
It imports `streamrl.models`, `streamrl.storage` and `streamrl.system`. Only `tensors` and `shm` need torch.
No Ray and no engine: `streamrl.services.weights` and the replicas call it.
"""
