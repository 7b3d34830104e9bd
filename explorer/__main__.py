"""`python -m explorer`: the same as the command `explorer`."""

import sys

if __name__ == "__main__" and not sys.flags.safe_path:
    # `-m` puts the current folder before all others: nothing that lies there is to be taken for a library
    del sys.path[0]

from explorer.cli.main import main

if __name__ == "__main__":
    raise SystemExit(main())
