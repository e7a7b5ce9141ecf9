"""Rows as Arrow batches and as numpy columns, and what they must hold.
It imports `streamrl.config`, `streamrl.conversations` and `streamrl.scheduling`.
No file: `streamrl.buffers.segments` writes and reads them.
"""
