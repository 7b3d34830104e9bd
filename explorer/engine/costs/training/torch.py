"""How an nn.Module would be trained: autograd itself says which gradients are wanted.

The model runs on shapes once more, with gradients on. Then every tensor knows whether it wants one, and a
frozen prefix, a detached branch, a block under `no_grad` and integer inputs need no rules of ours.
Nothing runs backward: what the gradients multiply follows from the operators (`gradients`), so what
torch's kernels compute twice is not counted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from msgspec import Struct, field

from explorer.base.errors import Misuse
from explorer.engine.costs.layer_tree import Leaf
from explorer.engine.costs.torch.records import Row, Trace, tensors
from explorer.engine.costs.training import gradients
from explorer.engine.costs.training.gradients import Gradient, Want
from explorer.engine.costs.training.step import Kept, Part, Step
from explorer.facts import Analysis, Progress

if TYPE_CHECKING:
    from explorer.engine.formats.torch_module.loaded import LoadedModule

__all__ = ["Gradients", "step"]


class _Product(Struct):
    """An operator that multiplies: its gradients (None: unknown), and where it stands in autograd's graph.

    Autograd has its word on the tensors that it `made` only after the operator; until then `steps` is empty.
    """

    name: str
    gradient: Gradient | None
    made: list[torch.Tensor]
    steps: list[Any] = field(default_factory=list)


class _Sum(Struct):
    """What is known of one row: what it multiplied, and what it put out."""

    products: list[_Product] = field(default_factory=list)
    results: list[tuple[int, bool]] = field(default_factory=list)


class Gradients:
    """Watches the operators of a run with gradients on (see `module_trace.trace`)."""

    def __init__(self) -> None:
        self.failed = ""
        self.parts: list[Part] = []
        self._weights: set[int] = set()
        self._constants: set[int] = set()
        self._read: set[int] = set()
        self._sums: dict[int, tuple[Row, _Sum]] = {}
        self._last: _Product | None = None

    def begin(self, weights: Iterable[int], constants: Iterable[int]) -> None:
        """Takes the storages of the parameters and of the buffers."""
        self._weights = set(weights)
        self._constants = set(constants)

    def _of(self, row: Row) -> _Sum:
        return self._sums.setdefault(id(row), (row, _Sum()))[1]

    def _want(self, tensor: Any) -> Want:
        if not isinstance(tensor, torch.Tensor) or not tensor.requires_grad:
            return ""
        return "weight" if _storage(tensor) in self._weights else "input"

    def operator(
        self,
        row: Row,
        name: str,
        args: Sequence[Any],
        given: Sequence[torch.Tensor],
        made: Sequence[torch.Tensor],
        macs: int | None,
        beside: int | None,
    ) -> None:
        """Books the gradients of one ATen operator on its row; `beside` are its elementwise operations."""
        self._resolve()
        if not torch.is_grad_enabled() or not any(t.requires_grad for t in given):
            return
        self._read.update(_storage(t) for t in given)
        # what is made of weights alone is a weight in another guise: a cast, a normalised one
        if all(_storage(t) in self._weights or _storage(t) in self._constants for t in given):
            self._weights.update(_storage(t) for t in made)
        if not macs and beside == 0:
            return
        found: Gradient | None = Gradient()
        if macs:
            found = gradients.of_aten(name, args, made[0] if made else None, macs, self._want)
        if found is not None:
            found += Gradient(elementwise=gradients.elementwise(beside, map(self._want, given)))
        self._book(row, _Product(name, found, list(made)))

    def _book(self, row: Row, product: _Product) -> None:
        self._of(row).products.append(product)
        self._last = product

    def _resolve(self) -> None:
        """Notes the place of the last product in autograd's graph, before one in place takes it over."""
        last, self._last = self._last, None
        if last is not None:
            last.steps = [t.grad_fn for t in last.made if t.grad_fn is not None]
            last.made = []

    def recurrent(
        self,
        row: Row,
        made: Sequence[torch.Tensor],
        macs: int,
        beside: int | None,
        into: int,
        start: int,
        source: torch.Tensor,
        states: Sequence[torch.Tensor],
        weights: Sequence[torch.Tensor],
    ) -> None:
        """Books the gradients of a recurrent layer that runs in one piece; see `gradients.recurrent`."""
        self._resolve()
        wants = [self._want(t) for t in weights if t.dim() > 1]
        state: Want = next((w for w in map(self._want, states) if w), "")
        found = gradients.recurrent(macs, into, start, self._want(source), state, wants)
        if found is not None:
            asked = map(self._want, (source, *states, *weights))
            found += Gradient(elementwise=gradients.elementwise(beside, asked))
        self._book(row, _Product("a recurrent layer", found, list(made)))
        self._read.update(_storage(t) for t in (source, *states))

    def joined(
        self, make: Callable[[], list[torch.Tensor]], used: Sequence[torch.Tensor]
    ) -> list[torch.Tensor]:
        """New tensors that want a gradient if one of `used` does."""
        return list(_Joined.apply(make, *used))

    def result(self, row: Row, value: Any) -> None:
        """Notes what a row put out, when autograd has had its word."""
        self._resolve()
        self._of(row).results += [(_storage(t), t.requires_grad) for _, t in tensors(value)]

    def settle(
        self, rows: Sequence[Row], leaves: Sequence[Leaf], rows_of: Sequence[int], seen: Trace
    ) -> None:
        """Makes the parts, once it is known which row each operator ends up in.

        Args:
            rows: What became the first of the leaves, in their order; the others did not run.
            leaves: All leaves.
            rows_of: Ids of the leaves' rows by position.
            seen: The run.
        """
        self._resolve()
        self.failed = seen.failed[1] if seen.failed else ""
        reached = None if seen.failed else _reached(seen.result)
        trained = {s.identity for s in seen.parameters.values() if s.trained}
        merged: dict[int, list[_Sum]] = {}
        for row, known in self._sums.values():
            final = row
            while final.merged is not None:
                final = final.merged
            if final is not row:
                merged.setdefault(id(final), []).append(known)
        for at, leaf in enumerate(leaves):
            own = self._sums[id(rows[at])][1] if at < len(rows) and id(rows[at]) in self._sums else _Sum()
            sums = [own, *(merged.get(id(rows[at]), ()) if at < len(rows) else ())]
            unknown, gradient = "", Gradient()
            for product in (p for known in sums for p in known.products):
                if not any(reached is None or step in reached for step in product.steps):
                    continue
                if product.gradient is None:
                    unknown = f"there is no rule for the gradient of {product.name}"
                else:
                    gradient = gradient + product.gradient
            results = own.results or [r for s in sums for r in s.results]
            self.parts.append(
                Part(
                    rows_of[at],
                    None if unknown else gradient.input,
                    None if unknown else gradient.weight,
                    None if unknown else gradient.elementwise,
                    any(wanted or key in self._read for key, wanted in results),
                    tuple(Kept(identity, size, identity in trained) for identity, _, size in leaf.stored),
                    "unknown" if unknown else "exact",
                    unknown,
                )
            )


def _reached(result: Any) -> set[Any]:
    """The steps of autograd's graph that a gradient of the results runs through.

    What was detached, or has no part in any result, is not among them.
    """
    pending = [t.grad_fn for _, t in tensors(result) if t.grad_fn is not None]
    found = set(pending)
    while pending:
        for step, _ in pending.pop().next_functions:
            if step is not None and step not in found:
                found.add(step)
                pending.append(step)
    return found


def _storage(tensor: torch.Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)


class _Joined(torch.autograd.Function):
    """Ties tensors that were made without autograd to those that they were made from."""

    @staticmethod
    def forward(ctx: Any, make: Callable[[], list[torch.Tensor]], *used: torch.Tensor) -> Any:
        return tuple(make())

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        raise NotImplementedError("shapes have no gradients")


def step(
    loaded: LoadedModule,
    *,
    batch: int | None = None,
    dims: Mapping[str, int] | None = None,
    input_shapes: Mapping[str, tuple[str | None, tuple[int, ...]]] | None = None,
    on_progress: Callable[[Progress], None] | None = None,
    cancel: Callable[[], bool] | None = None,
) -> Step:
    """One training step of a module.

    Args:
        loaded: From `torch_module.load`.
        batch: Its batch size, the first dimension of every input; None leaves the sizes as they are.
        dims: {'batch': n}.
        input_shapes: Type and shape of inputs by name.
        on_progress: Told about the modules that ran.
        cancel: Asked at every module.

    Raises:
        Misuse: Shapes have to be given.
        Cancelled: `cancel` said so.
    """
    from explorer.engine.costs.torch import analyse

    bound = dict(dims or {})
    if batch is not None:
        bound["batch"] = batch
    watch = Gradients()
    examine = partial(
        analyse.examine, loaded, input_shapes=input_shapes, dims=bound, on_progress=on_progress, cancel=cancel
    )
    try:
        analysis = examine(gradients=watch).analysis
    except Misuse as error:
        if batch is None or error.where != "--dim":
            raise
        raise Misuse(
            "its sizes are fixed, and the batch with them", where="--batch", hint=error.hint
        ) from None
    notes = ["as in evaluation mode: dropout, auxiliary heads and batch statistics are not in it"]
    compiled = [p for p, part in loaded.meta().named_modules() if isinstance(part, torch.jit.ScriptModule)]
    if compiled:
        notes.append(f"{compiled[0] or 'the model'} is compiled: gradients of weights in it are not counted")
    if watch.failed:
        plain = examine().analysis
        if not any(layer.reason.startswith("failed here") for layer in plain.layers):
            reason = f"the model does not run with gradients on: {watch.failed}"
            return Step(plain, _unknown(plain, reason), (*notes, reason))
        notes += [note for note in plain.info.model.notes if note.startswith("the model failed")]
    return Step(analysis, watch.parts, (*notes, *_unreached(analysis, watch.parts)))


def _unreached(analysis: Analysis, parts: Sequence[Part]) -> list[str]:
    """Says that layers are trained by what does not show in evaluation mode, such as a loss of their own."""
    found = [
        analysis.layers[part.layer].path
        for part in parts
        if analysis.layers[part.layer].macs and part.weight_macs == 0 and any(s.trained for s in part.stored)
    ]
    if not found:
        return []
    return [
        f"no result in evaluation mode depends on what {len(found):,} trained layers put out ({found[0]}):"
        " their gradients, which a loss in training may want, are not in it"
    ]


def _unknown(analysis: Analysis, reason: str) -> list[Part]:
    """Parts of layers of whose gradients nothing is known."""
    rows = [layer.id for layer in analysis.layers if not layer.group]
    return [Part(row, None, None, None, status="unknown", reason=reason) for row in rows]
