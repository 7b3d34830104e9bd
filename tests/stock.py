"""Stock onnxruntime: a model as another program runs it, on the processor, in one thread."""

from __future__ import annotations

from os import fspath
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime

LEVELS = ("ORT_DISABLE_ALL", "ORT_ENABLE_BASIC", "ORT_ENABLE_EXTENDED", "ORT_ENABLE_ALL")
"""Levels of optimization, from none."""


def opened(model: str | Path | bytes, level: str = LEVELS[-1], **config: str) -> onnxruntime.InferenceSession:
    """A session of a file or of an encoded model; `config` holds further entries of the session."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    options.graph_optimization_level = getattr(onnxruntime.GraphOptimizationLevel, level)
    for key, value in config.items():
        options.add_session_config_entry(key, value)
    source = model if isinstance(model, bytes) else fspath(model)
    return onnxruntime.InferenceSession(source, options, providers=["CPUExecutionProvider"])


def outputs(model: str | Path | bytes, feeds: dict[str, Any], level: str = LEVELS[-1]) -> list[np.ndarray]:
    """All outputs for the inputs."""
    return list(opened(model, level).run(None, feeds))
