"""Element types of what a model stores."""

from __future__ import annotations

from collections import Counter

from explorer.facts import Analysis
from explorer.facts.dtypes import DTypes, DTypeShare

__all__ = ["dtypes"]


def dtypes(analysis: Analysis) -> DTypes:
    """How many stored tensors there are of each element type."""
    count = Counter(tensor.dtype or "?" for layer in analysis.layers for tensor in layer.weights)
    return DTypes(tuple(DTypeShare(dtype, tensors) for dtype, tensors in count.most_common()))
