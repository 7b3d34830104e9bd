"""Arguments of the command line: verbs, options, and how words become them."""
