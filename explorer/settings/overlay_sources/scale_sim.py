"""Reports of SCALE-Sim 2 and 3: COMPUTE_REPORT.csv, BANDWIDTH_REPORT.csv, DETAILED_ACCESS_REPORT.csv.

A line has a blank after each comma and a comma at its end. Layers have numbers in the order of the topology
file, which lists the layers that multiply matrices.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

_ID = "layerid"
_OVER = (("start cycle", "min"), ("stop cycle", "max"), (" bw", "mean"))
"""How groups combine figures that must not be summed, by the end of the header."""


def is_report(heads: Sequence[str]) -> bool:
    """Whether the headers belong to a SCALE-Sim report."""
    return bool(heads) and heads[0].replace(" ", "").replace("_", "").casefold() == _ID


def convert_header(head: str) -> str:
    """Converts a header to the syntax of overlays: 'Overall Util %' becomes 'Overall Util (%)'.

    Groups get the mean of bandwidths, the first start cycle and the last stop cycle.
    """
    if head.endswith("%"):
        return f"{head.removesuffix('%').strip()} (%)"
    for end, group_rule in _OVER:
        if head.casefold().endswith(end):
            unit = " (words/cycle)" if group_rule == "mean" else ""
            return f"{head}{unit}:{group_rule}"
    return re.sub(r"\s*\((incl\. [^()]*)\)", r" \1", head)


def are_layer_numbers(names: Sequence[str]) -> bool:
    """Whether the names are consecutive layer numbers: 0, 1, 2."""
    return bool(names) and list(names) == [str(index) for index in range(len(names))]
