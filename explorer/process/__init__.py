"""The engine in a process of its own, and what outlives a terminal."""
