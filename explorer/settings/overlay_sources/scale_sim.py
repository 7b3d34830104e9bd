"""Reports of SCALE-Sim 2 and 3: COMPUTE_REPORT.csv, BANDWIDTH_REPORT.csv, DETAILED_ACCESS_REPORT.csv.

A line has a blank behind each comma and a comma at its end. Layers are numbered in the order of the topology
file, which has those that multiply matrices.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

_ID = "layerid"
_OVER = (("start cycle", "min"), ("stop cycle", "max"), (" bw", "mean"))
"""What of a group is no sum, by the end of a head."""


def is_report(heads: Sequence[str]) -> bool:
    """Whether a file has these heads."""
    return bool(heads) and heads[0].replace(" ", "").replace("_", "").casefold() == _ID


def with_unit(head: str) -> str:
    """A head as overlays have it: 'Overall Util %' is 'Overall Util (%)', bandwidths are means."""
    if head.endswith("%"):
        return f"{head.removesuffix('%').strip()} (%)"
    for end, over in _OVER:
        if head.casefold().endswith(end):
            unit = " (words/cycle)" if over == "mean" else ""
            return f"{head}{unit}:{over}"
    return re.sub(r"\s*\((incl\. [^()]*)\)", r" \1", head)


def numbered(names: Sequence[str]) -> bool:
    """Whether names are the places of layers: 0, 1, 2."""
    return bool(names) and list(names) == [str(at) for at in range(len(names))]
