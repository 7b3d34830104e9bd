"""What operators do along the positions of a text: nothing, attention, or something else.

A decode step can be derived from a pass over a whole text only where every position is worked on by
itself, except in attention that does not look ahead. Operators whose records (`operators.registry`,
`aten.table`) do not say what they do are taken to mix positions: what is safe is said, and forgets nothing
that is not.
"""

from __future__ import annotations

from collections.abc import Mapping

from explorer.engine.costs.aten.call import OperatorRecord
from explorer.engine.costs.aten.table import TABLE
from explorer.engine.operators.operator import Operator, Role
from explorer.engine.operators.registry import BY_NAME

_RECORDS: Mapping[str, Operator | OperatorRecord] = {**BY_NAME, **TABLE}

ROLES: Mapping[str, Role] = {op: record.position for op, record in _RECORDS.items() if record.position}
"""What is known to be safe, by ONNX's operator type or ATen's name; pointwise ATen operators say so."""

FACTORS: Mapping[str, tuple[int, int]] = {op: r.factors for op, r in _RECORDS.items() if r.factors}
"""Places of the two factors among the inputs, where they are not the first two."""

HIDING = frozenset(op for op, record in _RECORDS.items() if record.hides)
"""What tells earlier positions from later ones: a mask that hides the later ones is made with these."""

LOOKUPS = frozenset(op for op, record in _RECORDS.items() if record.lookup)
"""What comes out of a table says nothing of how its indices were made: a bias of distances hides nothing."""
