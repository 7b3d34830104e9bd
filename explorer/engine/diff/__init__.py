"""Compares two graphs, as rows of differences (`diff`) or as two layer trees side by side (`tree_diff`)."""

from explorer.engine.diff.compare import diff
from explorer.engine.diff.trees import tree_diff

__all__ = ["diff", "tree_diff"]
