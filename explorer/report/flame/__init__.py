"""A flame graph: groups as boxes as wide as what they take, laid out once for the screen and for pictures."""
