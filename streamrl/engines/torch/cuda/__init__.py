"""The torch engine's runner on a GPU: a paged KV cache, Triton kernels, one CUDA graph for each batch size.
It imports `streamrl.engines.torch`, `streamrl.models`, torch and Triton.
No request, no version, and nothing that a CPU would have to import.
"""
