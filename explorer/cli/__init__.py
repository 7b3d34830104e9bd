"""Command line: parses arguments, runs commands, prints answers, and returns exit codes."""
