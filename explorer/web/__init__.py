"""The screen in a browser, on textual-serve: a server, a session per visitor, and its program."""
