"""Commands of the main screen: a file with a class each, a line each in `key_table`."""
