"""Compares two graphs (`diff`), or two layer trees side by side (`compare_trees`)."""

from explorer.engine.diff.compare import diff
from explorer.engine.diff.trees import compare_trees

__all__ = ["compare_trees", "diff"]
