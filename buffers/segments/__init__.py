"""Segments: the files in which rows lie, written, read, copied between nodes, let go.
It imports `streamrl.buffers.ledger`, `streamrl.buffers.rows` and `streamrl.system`.
No group and no decision: a segment knows frames and bytes.
"""
