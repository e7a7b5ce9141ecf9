"""The torch engine's runner by torch's own operators, on any device, and by compiled kernels for float32 on a CPU.
It imports `streamrl.engines.torch`, `streamrl.system`, torch and numba.
No request and no version: the engine has them.
"""
