"""Version of this package and of its JSON documents, in a module that everything can import."""

SCHEMA_VERSION = 1
"""Version of JSON documents. It changes if a key is removed or changes its meaning."""
__version__ = "0.1.0"
