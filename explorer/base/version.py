"""Version of this package, and of its JSON documents, where everything of ours can read it."""

SCHEMA_VERSION = 1
"""Of JSON documents: a key that is taken away, or means something else, makes it another."""
__version__ = "0.1.0"
