"""The difference of two successive versions: format, kernels, files, and the shortest chain between two versions.
It imports `streamrl.weights`, `streamrl.system`, numpy and numba.
No network: `streamrl.weights.transport` sends deltas.
"""
