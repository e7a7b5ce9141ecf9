"""Runs the program of one rank, and ends its process when the program has ended.

    python rank_main.py PROGRAM [ARGUMENT ...]

Without the interpreter's own way out: threads of torch may still run then, and one that does aborts the process
("terminate called without an active exception"), once in some thousand times.
"""

import os
import runpy
import sys

if __name__ == "__main__":
    del sys.argv[0]
    sys.path[0] = os.path.dirname(sys.argv[0])
    runpy.run_path(sys.argv[0], run_name="__main__")
    sys.stderr.flush()
    os._exit(0)
