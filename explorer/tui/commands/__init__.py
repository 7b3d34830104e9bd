"""Commands of the main screen, one module each. `key_table` lists them with their keys."""
