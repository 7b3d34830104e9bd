"""Records, while an nn.Module runs on shapes, which gradients autograd needs and the work of each gradient.

With gradients enabled, each tensor states whether it requires one. Frozen layers, detached branches,
`no_grad` blocks and integer inputs therefore need no rules here. No backward pass runs. The products of the
gradients follow from the operators (`aten.table`), so work that torch's backward kernels recompute is not
counted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from msgspec import Struct, field
from torch.autograd.function import BackwardCFunction

from explorer.engine.compat.torch import (
    changes_saved_tensors,
    has_gradient_hooks,
    is_combined_script,
    storage_key,
)
from explorer.engine.costs.aten import dispatch
from explorer.engine.costs.layer_tree import LayerLeaf
from explorer.engine.costs.torch.records import Row, Trace, collect_trained_pieces
from explorer.engine.costs.training.step import LeafGradients, ParameterBytes
from explorer.engine.formats.torch_module.modules import walk_tensors
from explorer.engine.operators import gradients
from explorer.engine.operators.cost_formulas import Cost
from explorer.engine.operators.gradients import Gradient, GradientPurpose
from explorer.facts import TensorInfo


class _Product(Struct):
    """An operator call, its gradients (None if unknown), and its nodes (`steps`) in autograd's graph.

    Autograd sets the nodes of `outputs` after the operator has returned; until then `steps` is empty.
    """

    name: str
    gradient: Gradient | None
    outputs: list[torch.Tensor]
    steps: list[Any] = field(default_factory=list)


class _RowProducts(Struct):
    """The products of one row, and its results: storage, and whether the result requires a gradient."""

    products: list[_Product] = field(default_factory=list)
    results: list[tuple[int, bool]] = field(default_factory=list)


class Gradients:
    """Observes the operators of a run with gradients enabled (see `tracer.trace`).

    Attributes:
        failed: Error of a failed run, or ''.
        outsiders: Unregistered parameters that were used.
        parts: Gradients of each layer.
        in_subclass: Whether a tensor subclass makes the next operator calls, after autograd has seen its
            call.
    """

    def __init__(self) -> None:
        self.failed = ""
        self.outsiders: Sequence[TensorInfo] = ()
        self.parts: list[LeafGradients] = []
        self.in_subclass = False
        # ids of rows, and storages of tensors
        self._subclass_rows: set[int] = set()
        self._weights: set[int] = set()
        self._constants: set[int] = set()
        self._read_storages: set[int] = set()
        self._copies: set[int] = set()
        self._products_by_row: dict[int, tuple[Row, _RowProducts]] = {}
        self._last_product: _Product | None = None
        self._row_by_storage: dict[int, Row] = {}
        self._custom_functions: set[Any] = set()

    def begin(self, weights: Iterable[int], constants: Iterable[int]) -> None:
        """Sets the storages of parameters and of buffers before the run."""
        self._weights = set(weights)
        self._constants = set(constants)

    def _get_row_products(self, row: Row) -> _RowProducts:
        return self._products_by_row.setdefault(id(row), (row, _RowProducts()))[1]

    def _get_purpose(self, tensor: Any) -> GradientPurpose:
        """Returns the kind of gradient that a tensor needs: 'weight', 'input', or '' for none."""
        if not isinstance(tensor, torch.Tensor) or not self._needs_gradient(tensor):
            return ""
        return "weight" if _get_storage_address(tensor) in self._weights else "input"

    def note_copy(self, copied: torch.Tensor, original: torch.Tensor) -> None:
        """Records a copy without values of a tensor that was computed from an unregistered parameter."""
        if original.requires_grad:
            self._copies.add(_get_storage_address(copied))

    def _needs_gradient(self, tensor: torch.Tensor) -> bool:
        return tensor.requires_grad or (bool(self._copies) and _get_storage_address(tensor) in self._copies)

    def record_operator(
        self,
        row: Row,
        name: str,
        func: Any,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        inputs: Sequence[torch.Tensor],
        outputs: Sequence[torch.Tensor],
        cost: Cost,
    ) -> None:
        """Records the gradients of one ATen operator call on its row; `name` is the display name."""
        self._store_last_steps()
        for tensor in inputs:
            self._note_custom_function(tensor)
        self._row_by_storage.update((_get_storage_address(tensor), row) for tensor in outputs)
        if torch.is_grad_enabled() and self.in_subclass and (cost.macs or cost.elementwise_ops):
            self._subclass_rows.add(id(row))
        if not torch.is_grad_enabled() or not any(map(self._needs_gradient, inputs)):
            return
        self._read_storages.update(_get_storage_address(t) for t in inputs)
        # a tensor computed from weights only is still a weight, for example a cast or a normalized weight
        if all(
            _get_storage_address(t) in self._weights or _get_storage_address(t) in self._constants
            for t in inputs
        ):
            self._weights.update(_get_storage_address(t) for t in outputs)
        hook = ""
        if any(t.requires_grad and has_gradient_hooks(t) for t in inputs):
            hook = f"{name}, which has an input with a hook of the model"
        elif changes_saved_tensors():
            hook = f"{name}, whose saved tensors a hook replaces (torch.utils.checkpoint computes them again)"
        if hook:
            self._last_product = _Product(hook, None, list(outputs))
            self._get_row_products(row).products.append(self._last_product)
            return
        if not cost.macs and cost.elementwise_ops == 0:
            return
        gradient: Gradient | None = Gradient()
        if cost.macs:
            gradient = dispatch.compute_gradient(func, args, kwargs, outputs, cost.macs, self._get_purpose)
        if gradient is not None:
            purposes = map(self._get_purpose, inputs)
            gradient += Gradient(elementwise=gradients.elementwise(cost.elementwise_ops, purposes))
        self._last_product = _Product(name, gradient, list(outputs))
        self._get_row_products(row).products.append(self._last_product)

    def _note_custom_function(self, tensor: torch.Tensor) -> None:
        """Records an autograd function of the model's own code, whose backward pass is unknown."""
        step = tensor.grad_fn
        if step is None or step in self._custom_functions:
            return
        if isinstance(step, BackwardCFunction):
            name = type(step).__name__.removesuffix("Backward")
            reason = f"{name}, an autograd function of the model" if name != _GradientTie.__name__ else ""
        elif is_combined_script(step):
            reason = "operators that torch combined after earlier runs of this TorchScript"
        else:
            return
        self._custom_functions.add(step)
        row = self._row_by_storage.get(_get_storage_address(tensor))
        if row is not None and reason:
            self._get_row_products(row).products.append(_Product(reason, None, [], [step]))

    def _store_last_steps(self) -> None:
        """Stores the autograd nodes of the last product before an in-place operator replaces them."""
        last, self._last_product = self._last_product, None
        if last is not None:
            last.steps = [t.grad_fn for t in last.outputs if t.grad_fn is not None]
            last.outputs = []

    def connect(
        self, make: Callable[[], list[torch.Tensor]], sources: Sequence[torch.Tensor]
    ) -> list[torch.Tensor]:
        """Returns the tensors that `make` creates; they require a gradient if a tensor in `sources` does."""
        return list(_GradientTie.apply(make, *sources))

    def record_result(self, row: Row, value: Any) -> None:
        """Records the results of a row, after autograd has seen them."""
        self._store_last_steps()
        for _, tensor in walk_tensors(value):
            self._note_custom_function(tensor)
        if id(row) in self._subclass_rows:
            steps = [t.grad_fn for _, t in walk_tensors(value) if t.grad_fn is not None]
            self._get_row_products(row).products.append(
                _Product("operators below a tensor subclass", None, [], steps)
            )
            self._subclass_rows.discard(id(row))
        self.in_subclass = False
        self._get_row_products(row).results += [
            (_get_storage_address(t), t.requires_grad) for _, t in walk_tensors(value)
        ]

    def build_parts(
        self, rows: Sequence[Row], leaves: Sequence[LayerLeaf], rows_of: Sequence[int], run: Trace
    ) -> None:
        """Builds `parts` after each operator has its final row.

        Args:
            rows: Rows of the first leaves, in order; the remaining leaves did not run.
            leaves: All leaves.
            rows_of: Row id of each leaf.
            run: Trace of the run.
        """
        self._store_last_steps()
        for _, tensor in walk_tensors(run.result):
            row = self._row_by_storage.get(_get_storage_address(tensor)) if tensor.requires_grad else None
            if row is not None and has_gradient_hooks(tensor):
                steps = [tensor.grad_fn]
                self._get_row_products(row).products.append(_Product("a result with a hook", None, [], steps))
        self.failed = run.failed[1] if run.failed else ""
        self.outsiders = run.outsiders
        reached = None if run.failed else _collect_reached_steps(run.result)
        trained_ids = collect_trained_pieces(run.parameters.values())
        merged: dict[int, list[_RowProducts]] = {}
        for row, row_products in self._products_by_row.values():
            final = row
            while final.merged is not None:
                final = final.merged
            if final is not row:
                merged.setdefault(id(final), []).append(row_products)
        for index, leaf in enumerate(leaves):
            own_products = (
                self._products_by_row[id(rows[index])][1]
                if index < len(rows) and id(rows[index]) in self._products_by_row
                else _RowProducts()
            )
            sums = [own_products, *(merged.get(id(rows[index]), ()) if index < len(rows) else ())]
            unknown, gradient = "", Gradient()
            for product in (p for row_products in sums for p in row_products.products):
                if not any(reached is None or step in reached for step in product.steps):
                    continue
                if product.gradient is None:
                    unknown = f"there is no rule for the gradient of {product.name}"
                else:
                    gradient = gradient + product.gradient
            results = own_products.results or [r for s in sums for r in s.results]
            self.parts.append(
                LeafGradients(
                    rows_of[index],
                    None if unknown else gradient,
                    any(requires_grad or key in self._read_storages for key, requires_grad in results),
                    tuple(
                        ParameterBytes(identity, size, identity in trained_ids)
                        for identity, _, size in leaf.stored
                    ),
                    "unknown" if unknown else "exact",
                    unknown,
                )
            )


def _collect_reached_steps(result: Any) -> set[Any]:
    """Returns the nodes of autograd's graph that a gradient of the results passes through.

    Detached nodes and nodes that no result depends on are excluded.
    """
    pending = [t.grad_fn for _, t in walk_tensors(result) if t.grad_fn is not None]
    reached = set(pending)
    while pending:
        for step, _ in pending.pop().next_functions:
            if step is not None and step not in reached:
                reached.add(step)
                pending.append(step)
    return reached


def _get_storage_address(tensor: torch.Tensor) -> int:
    return storage_key(tensor.untyped_storage())


class _GradientTie(torch.autograd.Function):
    """Connects tensors created outside autograd to the tensors that they were computed from."""

    @staticmethod
    def forward(ctx: Any, make: Callable[[], list[torch.Tensor]], *used: torch.Tensor) -> Any:
        return tuple(make())

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        raise NotImplementedError("shapes have no gradients")
