"""`python -m explorer`: runs the command `explorer`."""

import sys

if __name__ == "__main__" and not sys.flags.safe_path:
    # `-m` puts the current folder first in the path, where files could shadow libraries
    del sys.path[0]

from explorer.cli.main import main

if __name__ == "__main__":
    raise SystemExit(main())
