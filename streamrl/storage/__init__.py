"""Whole objects under an address, in a folder or in any store that fsspec knows; sets of them, committed as one.
It imports `streamrl.errors` and `streamrl.system`.
It does not know what the objects are: checkpoints, exports and versions of weights are put together by who calls it.
"""
