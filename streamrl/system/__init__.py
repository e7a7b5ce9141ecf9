"""The operating system: disks, processes, descriptors, stacks; each failure as a typed error.
It imports `streamrl.errors` and `streamrl.clock` alone, and numba for where its kernels are kept.
It does not know what a run is.
"""
