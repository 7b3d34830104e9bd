"""Commands that hold models against each other: totals, outputs, errors, graphs, and what was converted."""
