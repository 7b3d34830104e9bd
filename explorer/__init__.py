"""Explorer: look inside a neural network, reshape it for hardware, and prove that nothing changed.

This module is the public API. Names are imported on first use (PEP 562), so that `import explorer` is fast:
the screen is painted before numpy, onnx or torch are imported.

    from explorer import Session, TileSpec

    with Session("alexnet") as session:
        print(session.info().totals.macs)
        result = session.tile(TileSpec(tile=(64, 64, 64)), output="alexnet_tiled.onnx")
        print(result.verification.verdict)
"""

from __future__ import annotations

import os

from explorer.base.version import __version__

# onnxruntime reads this variable when it is imported; without it, it sends telemetry
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from explorer.base.errors import BadModel, Cancelled, EngineDied, ExplorerError, MissingExtra, Misuse
    from explorer.engine.convert.onnx_to_torch_interpreter.opening import to_torch
    from explorer.facts import (
        Analysis,
        Diff,
        Info,
        Layer,
        Plan,
        TileResult,
        TileRule,
        TileSpec,
        Verification,
        to_json,
    )
    from explorer.facts.check import CheckSpec
    from explorer.facts.cost import Hardware, PlanCost
    from explorer.facts.profile.profile import ProfileSpec
    from explorer.facts.quantize import FormatSweepSpec, QuantizeSpec
    from explorer.facts.roofline import Machine
    from explorer.facts.serving.spec import ServingSpec
    from explorer.facts.serving.sweep import ServingSweepSpec
    from explorer.facts.split.edit import EditStep
    from explorer.facts.split.infer import InferSpec
    from explorer.facts.split.part import PartSpec
    from explorer.facts.split.split import SplitSpec
    from explorer.facts.summary import Counts, Summary
    from explorer.facts.sweep import Sweep, SweepRow, SweepSpec
    from explorer.facts.user_pass import PassSpec
    from explorer.facts.verification import Tolerance
    from explorer.session import (
        Session,
        blame_files,
        check_files,
        compare_files,
        count,
        diff_files,
        evaluate_files,
        list_models,
        make_model,
        measure_machine,
        progress_bar,
        run_pipeline,
        summary,
        sweep_files,
        sweep_formats,
        sweep_serving,
        tree_diff_files,
        verify_files,
    )

__all__ = [
    "Analysis",
    "BadModel",
    "Cancelled",
    "CheckSpec",
    "Counts",
    "Diff",
    "EditStep",
    "EngineDied",
    "ExplorerError",
    "FormatSweepSpec",
    "Hardware",
    "InferSpec",
    "Info",
    "Layer",
    "Machine",
    "MissingExtra",
    "Misuse",
    "PartSpec",
    "PassSpec",
    "Plan",
    "PlanCost",
    "ProfileSpec",
    "QuantizeSpec",
    "Session",
    "ServingSpec",
    "ServingSweepSpec",
    "SplitSpec",
    "Summary",
    "Sweep",
    "SweepRow",
    "SweepSpec",
    "TileResult",
    "TileRule",
    "TileSpec",
    "Tolerance",
    "Verification",
    "__version__",
    "blame_files",
    "check_files",
    "compare_files",
    "count",
    "diff_files",
    "evaluate_files",
    "list_models",
    "make_model",
    "measure_machine",
    "progress_bar",
    "run_pipeline",
    "summary",
    "sweep_files",
    "sweep_formats",
    "sweep_serving",
    "to_json",
    "to_torch",
    "tree_diff_files",
    "verify_files",
]

_NAMES_BY_MODULE = {
    "explorer.engine.convert.onnx_to_torch_interpreter.opening": ("to_torch",),
    "explorer.base.errors": (
        "BadModel",
        "Cancelled",
        "EngineDied",
        "ExplorerError",
        "MissingExtra",
        "Misuse",
    ),
    "explorer.facts": (
        *("Analysis", "Diff", "Info", "Layer", "Plan", "TileResult", "TileRule", "TileSpec"),
        *("Verification", "to_json"),
    ),
    "explorer.facts.check": ("CheckSpec",),
    "explorer.facts.cost": ("Hardware", "PlanCost"),
    "explorer.facts.split.edit": ("EditStep",),
    "explorer.facts.split.infer": ("InferSpec",),
    "explorer.facts.profile.profile": ("ProfileSpec",),
    "explorer.facts.quantize": ("FormatSweepSpec", "QuantizeSpec"),
    "explorer.facts.roofline": ("Machine",),
    "explorer.facts.serving.spec": ("ServingSpec",),
    "explorer.facts.serving.sweep": ("ServingSweepSpec",),
    "explorer.facts.split.part": ("PartSpec",),
    "explorer.facts.split.split": ("SplitSpec",),
    "explorer.facts.summary": ("Counts", "Summary"),
    "explorer.facts.sweep": ("Sweep", "SweepRow", "SweepSpec"),
    "explorer.facts.user_pass": ("PassSpec",),
    "explorer.facts.verification": ("Tolerance",),
    "explorer.session": (
        *("Session", "blame_files", "check_files", "compare_files", "count", "diff_files"),
        *(
            "evaluate_files",
            "summary",
            "list_models",
            "make_model",
            "measure_machine",
            "progress_bar",
            "run_pipeline",
            "sweep_files",
            "sweep_formats",
        ),
        *("sweep_serving", "tree_diff_files", "verify_files"),
    ),
}
_MODULE_BY_NAME = {name: module for module, names in _NAMES_BY_MODULE.items() for name in names}


def __getattr__(name: str) -> Any:
    if name in _MODULE_BY_NAME:
        from importlib import import_module

        if name == "to_torch":
            from explorer.host.system import check_supported

            check_supported("explorer.to_torch")
            from explorer.base.checked import wrap_checked
            from explorer.session.session import argument_type

            return wrap_checked(getattr(import_module(_MODULE_BY_NAME[name]), name), argument_type)
        return getattr(import_module(_MODULE_BY_NAME[name]), name)
    raise AttributeError(f"module 'explorer' has no attribute '{name}'")


def __dir__() -> list[str]:
    return sorted(__all__)
