"""Nodes to be counted, given by their shapes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pytest

from explorer.engine.operators.call import Call
from explorer.engine.operators.cost_formulas import Cost
from explorer.engine.operators.registry import compute_cost
from explorer.facts import Shape, TensorInfo

Count = Callable[..., Cost]


@pytest.fixture(scope="session")
def count() -> Count:
    """`count('Conv', [(1, 3, 8, 8), (4, 3, 3, 3)], (1, 4, 6, 6), group=1)`: what that node costs.

    An input is a shape, None where it is left out, or an array whose contents are known. The output is a
    shape, or a list of them.
    """

    def make(
        op: str,
        inputs: Sequence[Shape | np.ndarray[Any, Any] | None],
        output: Shape | list[Shape | None] | None,
        domain: str = "",
        opset: int = 0,
        **attributes: Any,
    ) -> Cost:
        infos: list[TensorInfo | None] = []
        contents: dict[str, Any] = {}
        for index, given in enumerate(inputs):
            name = f"i{index}"
            if isinstance(given, np.ndarray):
                contents[name] = given
                infos.append(TensorInfo(name, str(given.dtype), given.shape))
            else:
                infos.append(None if given is None else TensorInfo(name, "float32", given))
        outputs = output if isinstance(output, list) else [output]
        made = tuple(TensorInfo(f"y{i}", "float32", s) for i, s in enumerate(outputs))
        given_attributes: Mapping[str, Any] = attributes
        return compute_cost(Call(op, domain, given_attributes, tuple(infos), made, contents, opset))

    return make
