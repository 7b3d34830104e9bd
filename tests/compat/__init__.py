"""The same tests with other versions of what the program needs.

    python -m tests.compat                   every set, one environment at a time: about an hour
    python -m tests.compat --list            names the sets
    python -m tests.compat --set lowest      runs one
    python -m tests.compat --write           and writes the table into the manual's page `versions`
    python -m pytest tests/compat            runs the tests with the versions that are installed here

It needs uv (the extra `compat`) and a package index. An environment takes 5 to 8 GB on the disk, most of it
linked from uv's cache, and is deleted after its run. The suite leaves this folder out: it has longer tests of
the same subjects.
"""
