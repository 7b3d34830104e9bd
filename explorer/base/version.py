"""Version of this package, and of its JSON documents, in a module that everything can import."""

SCHEMA_VERSION = 1
"""Version of JSON documents: a removed key, or a key with another meaning, changes it."""
__version__ = "0.1.0"
