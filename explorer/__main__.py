"""`python -m explorer`: the same as the command `explorer`."""

from explorer.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
