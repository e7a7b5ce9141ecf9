"""`streamrl up` with the small system of `fake_owner` in place of the real one; the rest is the product's."""

import sys
from pathlib import Path

from streamrl.config import load_args
from streamrl.errors import StreamRLError
from streamrl.services.commands.up import up

OWNER = (sys.executable, "-P", str(Path(__file__).with_name("fake_owner.py")))


def main() -> int:
    flags = {"--detach", "--json", "--fresh"} & set(sys.argv)
    path, *rest = [argument for argument in sys.argv[1:] if argument not in flags]
    try:
        return up(
            load_args(path, rest),
            detach="--detach" in flags,
            fresh="--fresh" in flags,
            as_json="--json" in flags,
            command=OWNER,
        )
    except StreamRLError as error:
        print(f"streamrl: {error}", file=sys.stderr)
        return error.exit_code


if __name__ == "__main__":
    sys.exit(main())
