"""Arguments of the command line: commands, options, and the parser."""
