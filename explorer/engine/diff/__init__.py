"""Graph diff: the added, removed, changed and equal parts of two graphs, also as trees side by side."""

from explorer.engine.diff.compare import diff
from explorer.engine.diff.trees import tree_diff

__all__ = ["diff", "tree_diff"]
