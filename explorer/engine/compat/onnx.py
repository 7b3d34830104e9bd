"""Assumptions about onnx that its documentation does not state. onnx is imported on first use."""

from __future__ import annotations

from typing import Any


def build_scan_along_any_axis() -> list[Any]:
    """Returns the operators for `ReferenceEvaluator`: a Scan that stacks its outputs along any axis.

    The Scan of onnx stacks along the first axis only.

    Assumes: `onnx.reference.ops.op_scan.Scan` keeps the axes in `scan_output_axes` and runs in `_run`.
    Seen: onnx 1.19 to 1.23.
    Otherwise: an empty list, so that the Scan of onnx runs. It refuses other axes, and the model has no
    reference.
    """
    import numpy as np

    try:
        from onnx.reference.ops import op_scan

        untyped: Any = op_scan
        base_class: Any = untyped.Scan
        if not callable(base_class._run):
            return []
    except (AttributeError, ImportError):
        return []

    class Scan(base_class):  # type: ignore[misc]
        op_domain = ""

        def __init__(self, node: Any, params: Any) -> None:
            super().__init__(node, params)
            untyped_self: Any = self
            self.output_axes = tuple(untyped_self.scan_output_axes or ())
            untyped_self.scan_output_axes = None  # the base class then stacks along the first axis

        def _run(self, *args: Any, **options: Any) -> Any:
            options.pop("scan_output_axes", None)
            stacked = list(super()._run(*args, **options))
            first_output = len(stacked) - len(self.output_axes)
            for index, axis in enumerate(self.output_axes, first_output):
                stacked[index] = np.moveaxis(stacked[index], 0, axis)
            return tuple(stacked)

    return [Scan]
