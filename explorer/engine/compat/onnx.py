"""Assumptions about onnx beyond its documentation. onnx is imported when one of these is used."""

from __future__ import annotations

from typing import Any


def scan_along_any_axis() -> list[Any]:
    """The operators to give to `ReferenceEvaluator`: a Scan that stacks what it collects along any axis.

    onnx's own stacks along the first axis, whatever the node says.

    Assumes: `onnx.reference.ops.op_scan.Scan` keeps the axes in `scan_output_axes` and runs in `_run`.
    Seen: onnx 1.19 to 1.23.
    Otherwise: none, so that onnx's own Scan runs: it refuses other axes, and the model has no reference.
    """
    import numpy as np

    try:
        from onnx.reference.ops import op_scan

        untyped: Any = op_scan
        first_axis: Any = untyped.Scan
        if not callable(first_axis._run):
            return []
    except (AttributeError, ImportError):
        return []

    class Scan(first_axis):  # type: ignore[misc]
        op_domain = ""

        def __init__(self, node: Any, params: Any) -> None:
            super().__init__(node, params)
            here: Any = self
            self.along = tuple(here.scan_output_axes or ())
            here.scan_output_axes = None

        def _run(self, *args: Any, **options: Any) -> Any:
            options.pop("scan_output_axes", None)
            stacked = list(super()._run(*args, **options))
            first = len(stacked) - len(self.along)
            for at, axis in enumerate(self.along, first):
                stacked[at] = np.moveaxis(stacked[at], 0, axis)
            return tuple(stacked)

    return [Scan]
