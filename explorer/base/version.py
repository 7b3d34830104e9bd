"""Version of this package, where everything of ours can read it."""

__version__ = "0.1.0"
