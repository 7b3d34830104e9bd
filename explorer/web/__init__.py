"""The screen in a browser (textual-serve): a server, a session for each visitor, the program that he sees."""
