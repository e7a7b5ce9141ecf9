"""Arrow frames that are no accident: mutated bytes under a checksum that fits.

They are refused or give rows that may be, and never crash the reader. A child process reads them, so that a crash
of it is a failure here that names the mutation.
`FAULT_SCALE=1` tries 50,000 mutations; `SEED` replays.
"""

import json
import os
import struct
import subprocess
import sys

from support.faults.fault_scale import SEED, scaled
from support.repository import TESTS

PROGRAM = TESTS / "arrow_mutations.py"
COUNT = scaled(50_000)


def test_a_mutated_frame_under_its_own_checksum_is_refused_or_gives_rows_that_may_be(tmp_path):
    arguments = [str(tmp_path), str(SEED), "0", str(COUNT)]
    child = subprocess.run(
        [sys.executable, str(PROGRAM), *arguments],
        capture_output=True,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    place = tmp_path / "mutation"
    number = struct.unpack("<Q", place.read_bytes())[0] if place.exists() else 0
    again = f"{PROGRAM.name} FOLDER {SEED} {number} 1"
    assert child.returncode == 0, f"exit code {child.returncode} at mutation {number}: {again}\n{child.stderr}"
    seen = json.loads(child.stdout)
    assert seen["refused"] + seen["rows"] == COUNT
    # Some of both: else nothing was mutated, or nothing was read.
    assert min(seen["refused"], seen["rows"]) > COUNT // 50
