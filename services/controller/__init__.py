"""The controller, and what keeps each kind of part.
It imports `streamrl.services`, `streamrl.buffers.segments`, `streamrl.buffers.queue` and `streamrl`.
No row and no weight passes through it.
"""
