"""Terminal user interface (`explorer MODEL`), built with Textual. It uses facts and a client of the engine."""
