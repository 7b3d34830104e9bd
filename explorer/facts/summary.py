"""Summary of a model: its layers as a table that folds, and its totals, for notebooks and scripts."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from explorer.base.fact import Fact, TableFact
from explorer.base.features import load
from explorer.facts import Info, Layer, Reach, Totals

RowSetting = Literal["depth", "var_names", "ascii_only", "hide_recursive_layers"]
"""Parts of a row's name in torchinfo's form."""


class Summary(TableFact, frozen=True):
    """The answer of `explorer.summary`. It prints as a table, and a notebook shows it as a tree that folds.

    Attributes:
        info: Model, assumptions and totals.
        layers: All rows of the layer tree, whatever `depth` is.
        columns: Names of the printed columns, see `explorer.settings.columns`.
        depth: Number of levels that the text shows, and that are open at first in a notebook.
        weights: Whether the table lists the stored tensors of each layer.
        row_settings: Parts of the rows' names in torchinfo's form. Empty for the names and types of layers.
        col_width: Minimum number of characters of each column of the text but the first; 0 for none.
    """

    ROWS: ClassVar[str] = "layers"

    info: Info
    layers: tuple[Layer, ...]
    columns: tuple[str, ...]
    depth: int
    weights: bool = False
    row_settings: tuple[RowSetting, ...] = ()
    col_width: int = 0

    def __repr__(self) -> str:
        return str(self)

    def __str__(self) -> str:
        text: str = load("displays", "text")(self)
        return text

    def to_dict(self) -> dict[str, Any]:
        """Returns the JSON document of `explorer layers --json`: model, totals, and all layers."""
        document: dict[str, Any] = load("displays", "document")(self)
        return document

    @property
    def totals(self) -> Totals:
        """All totals of the model."""
        return self.info.totals

    @property
    def total_params(self) -> int:
        """Number of parameters. Each stored parameter counts once."""
        return self.info.totals.params

    @property
    def trainable_params(self) -> int | None:
        """Number of parameters with requires_grad, or None if unknown."""
        return self.info.totals.trainable_params

    @property
    def total_mult_adds(self) -> int | None:
        """Multiply-accumulates of one forward pass, or None if unknown. `totals.status` says how exact."""
        return self.info.totals.macs

    @property
    def total_param_bytes(self) -> int:
        """Bytes of the parameters as they are stored."""
        return self.info.totals.weight_bytes

    @property
    def total_output_bytes(self) -> int | None:
        """Bytes of the outputs of all leaf modules, each output once, or None if unknown."""
        return self.info.totals.activation_bytes_sum


class Counts(Fact, frozen=True):
    """The answer of `explorer.count`: the totals of a model in one line.

    Attributes:
        macs: Multiply-accumulates of one forward pass, or None if unknown.
        params: Number of parameters. Each stored parameter counts once.
        flops: Floating-point operations of the matrix products: 2 x macs.
        weight_bytes: Bytes of the parameters as they are stored.
        activation_bytes_peak: Bytes of the largest set of activations that are live at the same step.
        coverage: Share of nodes whose cost is known, 0 to 1.
        status: Status of `macs` and `flops`, see `Totals`.
    """

    macs: int | None
    params: int
    flops: int | None
    weight_bytes: int
    activation_bytes_peak: int | None
    coverage: float
    status: Reach

    def _repr_html_(self) -> None:
        """Return None, so that a notebook shows the line of the repr."""
        return None
