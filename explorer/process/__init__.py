"""The engine in its own process, and state that outlives a terminal."""
