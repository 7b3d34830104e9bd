"""Changed regions, run alone."""
