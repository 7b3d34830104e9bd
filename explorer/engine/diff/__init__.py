"""Graph diff: two graphs in; what was added, removed, changed and kept out, also as trees side by side."""

from explorer.engine.diff.compare import diff
from explorer.engine.diff.trees import tree_diff

__all__ = ["diff", "tree_diff"]
