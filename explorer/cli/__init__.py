"""Command line: what is typed, what is printed, and the exit code."""
