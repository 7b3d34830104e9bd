"""The screen in a browser, based on textual-serve: a server, a session per visitor, and the served program."""
