"""Graph diff: two graphs in; what was added, removed, changed and kept out."""

from explorer.engine.diff.compare import diff

__all__ = ["diff"]
