"""Removes what is below a name in a store when whoever started it ends, however that ends: it waits for the end of its
standard input.

Run as `python -P -m streamrl.services.weights.store_cleanup ADDRESS NAME`, in a session of its own.
"""

import contextlib
import sys

from streamrl.errors import StreamRLError

if __name__ == "__main__":
    sys.stdin.buffer.read()
    # Here and not above: while the run goes on it holds none of it.
    from streamrl.storage.open import open_store

    # Nobody is there any more to be told.
    with contextlib.suppress(StreamRLError):
        store = open_store(sys.argv[1])
        store.remove(list(store.list(f"{sys.argv[2]}/")))
