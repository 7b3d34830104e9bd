"""Open sizes of a session's models: curves, decode steps, serving."""
