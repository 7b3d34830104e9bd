"""Terminal user interface (Textual), `explorer MODEL`: it knows facts and a client of the engine."""
