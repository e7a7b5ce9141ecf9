"""Segments: the files in which rows lie, written, read, copied between nodes, let go.
It imports `buffers.ledger`, `buffers.rows` and `streamrl.system`.
No group and no decision: a segment knows frames and bytes.
"""
