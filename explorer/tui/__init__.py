"""Terminal user interface (`explorer MODEL`), built with Textual on facts and a client of the engine."""
