"""Open sizes in words: curves, decode steps, serving."""
